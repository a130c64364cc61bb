"use strict";
(() => {
  const { columns, decimals, rows } = JSON.parse(document.getElementById("rows").textContent);
  const body = document.querySelector("#parties tbody");
  const heads = [...document.querySelectorAll("#parties thead th")];
  const search = document.getElementById("search");
  const more = document.getElementById("more");
  const shown = document.getElementById("shown");
  const page = 50;
  let limit = page;
  let by = 1; // the rank: of many parties the lowest values first, as these are looked for
  let down = rows.length > 30;

  const compare = (a, b) => {
    const x = a[by], y = b[by];
    if (x === null || y === null) return (x === null) - (y === null);
    const order = typeof x === "number" && typeof y === "number" ? x - y : String(x).localeCompare(String(y));
    return down ? -order : order;
  };
  const text = (value, place) => {
    if (value === null) return "–";
    if (typeof value !== "number" || place === 0) return String(value);
    const places = decimals[place];
    if (places !== null) {
      return value.toLocaleString("en", { minimumFractionDigits: places, maximumFractionDigits: places });
    }
    return Number.isInteger(value) ? String(value) : value.toPrecision(4);
  };
  const draw = () => {
    const wanted = search.value.trim().toLowerCase();
    const found = rows.filter((row) => String(row[0]).toLowerCase().includes(wanted)).sort(compare);
    body.replaceChildren(...found.slice(0, limit).map((row) => {
      const line = document.createElement("tr");
      row.forEach((value, place) => {
        const cell = document.createElement("td");
        cell.textContent = text(value, place);
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
  // As dpvalue/spreadsheet.py writes cells: a text that a spreadsheet would take for a formula gets an apostrophe.
  const cell = (value) => {
    if (value === null) return "";
    if (typeof value === "number") return String(value);
    const formula = /^'*[\s\ufeff\u200b\u2060]*[=+\-@\uff1d\uff0b\uff0d\uff20]/.test(value);
    return `"${formula ? "'" : ""}${value.replaceAll('"', '""')}"`;
  };
  const save = () => {
    const lines = [columns, ...rows].map((row) => row.map(cell).join(","));
    const file = new Blob(["\ufeff", lines.join("\r\n"), "\r\n"], { type: "text/csv" });
    const link = document.createElement("a");
    link.download = "values.csv";
    link.href = URL.createObjectURL(file);
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 1000);
  };
  heads.forEach((head, place) => head.querySelector("button").addEventListener("click", () => {
    down = place === by ? !down : false;
    by = place;
    draw();
  }));
  search.addEventListener("input", () => { limit = page; draw(); });
  more.addEventListener("click", () => { limit += 10 * page; draw(); });
  document.getElementById("save").addEventListener("click", save);
  draw();
})();
