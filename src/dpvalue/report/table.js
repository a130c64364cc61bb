"use strict";
(() => {
  const data = JSON.parse(document.getElementById("rows").textContent);
  const body = document.querySelector("#parties tbody");
  const heads = [...document.querySelectorAll("#parties thead th")];
  const search = document.getElementById("search");
  const more = document.getElementById("more");
  const shown = document.getElementById("shown");
  const page = 50;
  let limit = page;
  let by = 1; // the rank: the lowest values first
  let down = true;

  const compare = (a, b) => {
    const x = a[by], y = b[by];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return down ? -order : order;
  };
  const text = (value) => {
    if (value === null) return "–";
    return typeof value === "number" && !Number.isInteger(value) ? value.toPrecision(4) : String(value);
  };
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = data.filter((row) => String(row[0]).toLowerCase().includes(wanted)).sort(compare);
    body.replaceChildren(...found.slice(0, limit).map((row) => {
      const line = document.createElement("tr");
      row.forEach((value) => {
        const cell = document.createElement("td");
        cell.textContent = text(value);
        line.append(cell);
      });
      return line;
    }));
    shown.textContent = `${Math.min(limit, found.length)} of ${found.length} parties`;
    more.hidden = found.length <= limit;
    heads.forEach((head, place) => {
      if (place === by) head.setAttribute("aria-sort", down ? "descending" : "ascending");
      else head.removeAttribute("aria-sort");
    });
  };
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    down = place === by ? !down : false;
    by = place;
    draw();
  }));
  search.addEventListener("input", () => { limit = page; draw(); });
  more.addEventListener("click", () => { limit += 10 * page; draw(); });
  draw();
})();
