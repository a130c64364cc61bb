"""Verifying results: whatever is edited in a folder is named, and what nobody edited passes on any machine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pandas as pd
import pytest
import torch
from click.testing import Result
from typer.testing import CliRunner

import dpvalue as dpv
from dpvalue.cli import app
from dpvalue.coordinator import comparing, verifying
from dpvalue.coordinator.comparing import CLOSE, compare_values
from dpvalue.coordinator.roster import Member, Roster, store_roster
from dpvalue.coordinator.state import Coordinator
from dpvalue.coordinator.study import options_for, read_utility, value_study
from dpvalue.coordinator.verifying import Verification, verify_results
from dpvalue.party.policy import KnownCoordinator, Policy, Protection
from dpvalue.progress import silent
from dpvalue.protocol.archive import Archive, Key
from dpvalue.protocol.job import Job
from dpvalue.protocol.messages import Release, Request
from dpvalue.runs.execute import value_table
from dpvalue.runs.folder import values_csv
from tests.federation import Files, simulated, write_files

PAY = 100_000.0
ROUNDS = {"projection": None, "schedule": dpv.Schedule("replay", rounds=2, probes=3), "game": "steps"}
Leaf = tuple[Any, ...]


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> tuple[Files, dict[str, Key]]:
    """A study that four parties answered and signed, valued in `results`; and their keys."""
    files = write_files(tmp_path_factory.mktemp("study"))
    keys = {name: Key.new() for name in ("office", *files.sizes)}
    policy = Policy(Protection(epsilon=10.0), coordinators=(KnownCoordinator("office", keys["office"].public),))
    content = files.job().to_bytes(keys["office"])
    (files.folder / "study.job").write_bytes(content)
    for name in files.sizes:
        answer = replace(files.agent(name, key=keys[name]), policy=policy).answer(content)
        (files.folder / f"{name}.release").write_bytes(answer)
    value(files, files.folder / "results", content, [files.folder / f"{name}.release" for name in files.sizes])
    return files, keys


def value(files: Files, out: Path, content: bytes, releases: list[Path], pay: float = PAY) -> None:
    coordinator = Coordinator(out / "study", content)
    for path in releases:
        assert not coordinator.receive(path.read_bytes()).why
    job = coordinator.job
    value_study(coordinator, read_utility(job, files.public), options_for(job, files.public, pay=pay), out, silent)


@pytest.fixture
def folder(study: tuple[Files, dict[str, Key]], tmp_path: Path) -> Path:
    """A copy of the results, beside the public file."""
    shutil.copytree(study[0].folder / "results", tmp_path / "results")
    shutil.copy(study[0].public, tmp_path / "public.csv")
    return tmp_path / "results"


@pytest.fixture
def once(monkeypatch: pytest.MonkeyPatch) -> None:
    """The same options are valued once, and what is not edited is read once; all outputs are compared as ever."""
    made: dict[Any, Any] = {}
    real = comparing.rebuild_outputs

    def rebuild_outputs(coordinator: Coordinator, utility: Any, options: Any, progress: Any) -> Any:
        if options not in made:
            made[options] = real(coordinator, utility, options, progress)
        return made[options]

    monkeypatch.setattr(verifying, "rebuild_outputs", rebuild_outputs)
    for name in ("read_utility", "_read_releases"):
        monkeypatch.setattr(verifying, name, cache(getattr(verifying, name)))


def verified(folder: Path, **given: Any) -> Verification:
    return verify_results(folder, None, silent, **given)


def named(folder: Path, *words: str, **given: Any) -> None:
    """Results differ, and a line names all of these words."""
    lines = verified(folder, **given).differences
    assert any(all(word in line for word in words) for line in lines), (words, lines[:9])


def test_what_nobody_edited_passes(folder: Path, study: tuple[Files, dict[str, Key]]) -> None:
    files, keys = study
    roster = Roster(tuple(Member(name, keys[name].public) for name in files.sizes))
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    found = verified(folder, roster=roster)
    assert found.differences == ()
    assert (found.parties, found.releases, found.signatures) == (tuple(sorted(files.sizes)), 4, 4)
    assert "100,000" in found.unverified_choices[-1]
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before  # nothing is written


def leaves(tree: Any, at: Leaf = ()) -> Iterator[Leaf]:
    inside = tree.items() if isinstance(tree, dict) else enumerate(tree) if isinstance(tree, list) else ()
    for key, member in inside:
        yield from leaves(member, (*at, key))
    if not isinstance(tree, dict | list) or not tree:
        yield at


def edited(tree: Any, at: Leaf, change: Callable[[Any], Any]) -> Any:
    if not at:
        return change(tree)
    whole = dict(tree) if isinstance(tree, dict) else list(tree)
    whole[at[0]] = edited(tree[at[0]], at[1:], change)
    return whole


def other(leaf: Any) -> Any:
    """Something else than a leaf holds, as a forger would write it."""
    if isinstance(leaf, bool) or leaf is None:
        return not leaf
    if isinstance(leaf, str):
        return leaf[:-1] + ("x" if leaf[-1:] != "x" else "y")
    return [1] if isinstance(leaf, list) else leaf + (1 if isinstance(leaf, int) else 0.01)


@pytest.mark.slow
def test_each_field_of_the_record_is_compared(folder: Path, once: None) -> None:
    path = folder / "run.json"
    text = path.read_text()
    record = json.loads(text)
    everywhere = [at for number, at in enumerate(leaves(record)) if at[0] != "curves" or number % 4 == 0]
    assert len(everywhere) > 80

    def write(tree: Any) -> None:
        path.write_text(json.dumps(tree, indent=1) + "\n")

    for at in everywhere:
        write(edited(record, at, other))
        place = "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in at)[1:]
        if place in ("format", "versions.dpvalue"):
            with pytest.raises(dpv.DpvalueError, match="cannot be compared"):
                verified(folder)
        elif place in ("versions.python", "versions.torch"):  # nothing is made of them
            found = verified(folder)
            assert not found.differences
            assert other(record["versions"][at[1]]) in found.unverified_choices[0]
        else:
            named(folder, f"run.json, {place}:")
    write(edited(record, ("made",), lambda day: "2020-01-01"))
    named(folder, "report.html, line", "2020-01-01")  # a day, but not the page's
    for at in {leaf[:cut] for leaf in everywhere for cut in range(len(leaf))}:
        write(edited(record, at, lambda part: {**part, "more": 1} if isinstance(part, dict) else [*part, 1]))
        named(folder, "run.json, ", "more" if isinstance(part_of(record, at), dict) else str(at[-1]))
    for key in record:
        write({name: part for name, part in record.items() if name != key})
        if key in ("format", "versions"):
            with pytest.raises(dpv.DpvalueError, match="cannot be compared"):
                verified(folder)
        else:
            named(folder, f"run.json, {key}")
    for number in ("NaN", "Infinity", "1e999", "-0.1"):
        path.write_text(text.replace('"epsilon": 1.0', f'"epsilon": {number}'))
        named(folder, "run.json, guarantee.epsilon:")
    path.write_text(text.replace('"epsilon": 1.0', '"epsilon": 0.1,\n  "epsilon": 1.0'))  # some parsers take the first
    named(folder, "run.json, line")
    path.write_text(text + "\n")
    named(folder, "run.json, its end")


def part_of(tree: Any, at: Leaf) -> Any:
    for key in at:
        tree = tree[key]
    return tree


@pytest.mark.slow
def test_each_cell_of_the_values_is_compared(folder: Path, once: None) -> None:
    path = folder / "values.csv"
    text = path.read_text()
    lines = [line.split(",") for line in text.splitlines()]
    forgeries = ["", "nan", "inf", "-1e999", "0", "1_0", "=1+1"]
    for number, line in enumerate(lines):
        for place, cell in enumerate(line):
            largest = 0.0 if not number * place else max(abs(float(own[place])) for own in lines[1:])
            moved = repr(float(cell) + 0.001 * (largest or 1.0)) if number * place else f"{cell}1"
            for change in {moved, forgeries[place % len(forgeries)]} if number % 2 else {moved}:
                forged = [*line[:place], change, *line[place + 1 :]]
                if change != cell:
                    path.write_text("\n".join(map(",".join, [*lines[:number], forged, *lines[number + 1 :], []])))
                    named(folder, f"values.csv, line {number + 1}", lines[0][place] if number else "")
    whole: dict[str, list[list[str]]] = {
        "an extra column": [[*line, "1.0" if number else "bonus"] for number, line in enumerate(lines)],
        "a missing column": [line[:-1] for line in lines],
        "an extra line": [*lines, ["zeta", *lines[1][1:]]],
        "a missing line": lines[:-1],
        "other order": [lines[0], *lines[:0:-1]],
        "nothing": [],
        "quotes": [[f'"{cell}"' for cell in line] for line in lines],
    }
    for what, table in whole.items():
        path.write_text("".join(",".join(line) + "\n" for line in table))
        assert any(difference.startswith("values.csv") for difference in verified(folder).differences), what
    for content in (text.replace("\n", "\r\n"), text + "\n", "\ufeff" + text, text + "\0", 'x"' + text):
        path.write_bytes(content.encode())
        named(folder, "values.csv")
    path.write_bytes(b"\xff" + text.encode())
    named(folder, "values.csv: 'utf-8' codec can't decode")


@pytest.mark.slow
def test_each_part_of_the_page_is_compared(folder: Path, once: None) -> None:
    """Text nodes, attributes, coordinates, the embedded data, the script, the style and the policy."""
    path = folder / "report.html"
    text = path.read_text()
    spans = [found.span(1) for found in re.finditer(r'(?:>|=")([^<>"]*[^<>"\s][^<>"]*)(?=<|")', text)]
    spans += [found.span() for found in re.finditer(r"-?\d+\.\d+", text)]
    assert len(spans) > 300
    for start, end in spans[::9]:
        at = next(place for place in range(end - 1, start - 1, -1) if not text[place].isspace())
        letter = "8" if text[at] == "9" else "9" if text[at].isdigit() else "q"
        path.write_text(text[:at] + letter + text[at + 1 :])
        named(folder, f"report.html, line {text.count(chr(10), 0, at) + 1}:")
    for forged in (text + "<p>", text.replace("</main>", "<p>all is well</p>\n</main>"), text[:-9], ""):
        path.write_text(forged)
        named(folder, "report.html")


def test_each_option_is_compared(folder: Path, once: None) -> None:
    path = folder / "run.toml"
    text = path.read_text()
    for number, line in enumerate(text.splitlines(), start=1):
        path.write_text(text.replace(line, f"{line}  # ") if number == 1 else text.replace(f"{line}\n", ""))
        named(folder, "run.toml, line" if number == 1 else "run.toml, ")
    for old, new in (("epsilon = 1.0", "epsilon = 0.1"), (f"pay = {PAY}", "pay = 1.0"), ("seed = 0", "seed = 1")):
        assert old in text
        path.write_text(text.replace(old, new))
        named(folder, "run.toml, line", new)
    path.write_text(text)
    record = json.loads((folder / "run.json").read_text())
    for old, new in ((f"pay = {PAY}", "pay = 46774.0"), ('semivalue = ["shapley"]', 'semivalue = ["banzhaf"]')):
        forged = {**record, "toml": record["toml"].replace(old, new)}
        (folder / "run.json").write_text(json.dumps(forged, indent=1) + "\n")
        named(folder, "run.json, toml: it differs from run.toml")
        named(folder, "values.csv, line")


def test_the_table_is_compared(folder: Path, once: None) -> None:
    path = folder / "table.safetensors"
    content = path.read_bytes()
    header, tensors = dpv.Table.archive.read(path)
    for name, tensor in tensors.items():
        for change in (
            tensor * 0 + 7,
            tensor.flatten()[:1],
            tensor.to(torch.float32 if tensor.dtype != torch.float32 else torch.float64),
        ):
            dpv.Table.archive.write(path, header, {**tensors, name: change})
            named(folder, f"table.safetensors, {name}")
    dpv.Table.archive.write(path, header, {**tensors, "rows": tensors["rows"] * float("nan")})
    named(folder, "table.safetensors, rows[0, 0]: nan")
    dpv.Table.archive.write(path, header, {**tensors, "more": tensors["rows"] + 1})
    named(folder, "table.safetensors, more")
    for at in [*leaves(header)][::3]:
        dpv.Table.archive.write(path, edited(header, at, other), tensors)
        named(folder, "table.safetensors, ", str(at[-1]) if isinstance(at[-1], str) else f"[{at[-1]}]")
    path.write_bytes(Archive("table", 7).pack(header, tensors))
    named(folder, "table.safetensors", f"must have dpvalue format {dpv.Table.archive.version}")
    path.write_bytes(dpv.Table.archive.pack(header, tensors, Key.new().seal("table", dpv.Table.archive.version, "0")))
    named(folder, "it holds more than a table")
    path.write_bytes(content[:-1])
    named(folder, "table.safetensors", "truncated")


def test_files_that_are_missing_or_too_many_are_named(folder: Path, once: None) -> None:
    for name in ("run.toml", "table.safetensors", "values.csv", "report.html"):
        content = (folder / name).read_bytes()
        (folder / name).unlink()
        named(folder, f"{name}: No such file")
        (folder / name).mkdir()
        named(folder, f"{name}: Is a directory")
        (folder / name).rmdir()
        (folder / name).write_bytes(content)
    for name in ("values2.csv", "study/note.txt", "study/round-1/east.request", "study/round-0/east.txt"):
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
        named(folder, f"{name}: no part of the results")
        (folder / name).unlink()
    beside = ("revalue-banzhaf-public/values.csv", ".values.csv.1.part", "study/nodes.json")
    for name in beside:
        (folder / name).parent.mkdir(exist_ok=True)
        (folder / name).write_text("")
    found = verified(folder)
    assert not found.differences
    assert sorted(found.unchecked_files) == [".values.csv.1.part", "revalue-banzhaf-public", "study/nodes.json"]
    (folder / "run.json").unlink()
    named(folder, "run.json", "nothing was recomputed")
    (folder / "run.json").write_text("{")
    named(folder, "run.json has been damaged")
    (folder / "run.json").write_text("[1]")
    named(folder, "run.json must be an object")


def test_the_releases_are_what_counts(folder: Path, study: tuple[Files, dict[str, Key]]) -> None:
    """Another release, signed too, makes other outputs; one that is not signed by its party's key is refused."""
    files, keys = study
    roster = Roster(tuple(Member(name, keys[name].public) for name in files.sizes))
    path = folder / "study" / "round-0" / "east.release"
    content = path.read_bytes()
    good = Release.from_bytes(content)
    path.write_bytes(replace(good, numbers=good.numbers * 0.9).to_bytes(keys["east"]))
    for words in (["values.csv, line 2, shapley:"], ["table.safetensors, rows[0, 0]"], ["run.json, curves[0].mean"]):
        named(folder, *words, roster=roster)
    path.write_bytes(replace(good, units=41).to_bytes(keys["east"]))
    named(folder, "run.json, federated.answered[0].units: 40; recomputed: 41", roster=roster)
    path.write_bytes(good.to_bytes())
    named(folder, "run.json, federated.answered[0].key")  # nobody signed it
    named(folder, "east.release: it is not signed by the party's key; nothing was recomputed", roster=roster)
    path.write_bytes(good.to_bytes(keys["west"]))
    named(folder, "east.release: it is not signed by the party's key", roster=roster)
    path.write_bytes(replace(good, party="zeta", numbers=good.numbers * 0.9).to_bytes())
    named(folder, "east.release does not hold the release that its name says")
    path.write_bytes(content)
    extra = folder / "study" / "round-0" / "zeta.release"
    extra.write_bytes(replace(good, party="zeta").to_bytes())
    named(folder, "zeta.release: it is a copy of the release of 'east'")
    extra.write_bytes(replace(good, party="zeta", numbers=good.numbers * 0.9).to_bytes())
    named(folder, "run.json, federated.answered: ")
    named(folder, "values.csv, ")
    named(folder, "zeta.release: it is not in the roster", roster=roster)
    extra.unlink()
    path.unlink()
    named(folder, "run.json, federated.answered: ")
    path.write_bytes(content)
    strangers = Roster(tuple(Member(name, Key.new().public) for name in files.sizes))
    named(folder, "it is not signed by the party's key", roster=strangers)
    swapped = Roster((Member("east", keys["west"].public), Member("west", keys["east"].public)))
    named(folder, "it is not signed by the party's key", roster=swapped)
    kept = folder / "study" / "roster.json"
    store_roster(kept.parent, strangers)
    named(folder, "it is not signed by the party's key; nothing was recomputed")
    kept.unlink()
    store_roster(kept.parent, Roster((*roster.party, Member("zeta", Key.new().public))))
    assert verified(folder).differences == ()  # it is what the coordinator may have had
    named(folder, "roster.json is not the roster that was given", roster=roster)
    kept.unlink()
    double = folder / "study" / "round-0" / "EAST.release"
    double.write_bytes(replace(good, party="EAST", numbers=good.numbers * 0.9).to_bytes())
    named(folder, "got 'EAST' and 'east'")
    double.unlink()
    (folder / "study" / "rejected.jsonl").write_text('{"party": "zeta", "round": 0, "why": "late"}\n')
    named(folder, "run.json, federated.rejected: ")


def test_the_job_is_what_parties_answered(folder: Path, study: tuple[Files, dict[str, Key]]) -> None:
    files, keys = study
    path = folder / "study" / "study.job"
    content = path.read_bytes()
    job = Job.from_bytes(content)
    path.write_bytes(replace(job, about=replace(job.about, seed=5)).to_bytes(keys["office"]))
    named(folder, "does not answer round 0 of this job", "nothing was recomputed")
    path.write_bytes(content[:-1])
    named(folder, "study.job", "nothing was recomputed")
    flipped = bytearray(content)
    flipped[content.index(b"signature") + 20] ^= 1
    path.write_bytes(bytes(flipped))
    named(folder, "is invalid: it was not made with the key that it names")
    assert job.about.table is not None
    header, tensors = job.about.table
    cheap = {**header, "guarantee": {**header["guarantee"], "epsilon": 0.1}}
    lies = {
        "about.table.guarantee.epsilon: 0.1": replace(job, about=replace(job.about, table=(cheap, tensors))),
        "privacy.epsilon: 0.1": replace(job, privacy=replace(job.privacy, epsilon=0.1)),
    }
    for words, lie in lies.items():  # unsigned, with releases that answer it: all is of one piece but the noise
        forged = folder.parent / f"forged-{words[:5]}"
        for release in sorted((folder / "study" / "round-0").glob("*.release")):
            own = Release.from_bytes(release.read_bytes())
            answer = replace(own, job=lie.digest, request=lie.first_request(own.units).digest)
            (folder.parent / release.name).write_bytes(answer.to_bytes())
        value(files, forged, lie.to_bytes(), sorted(folder.parent.glob("*.release")))
        named(forged, "study/study.job, ", words)


def test_requests_of_later_rounds_are_compared(tmp_path: Path) -> None:
    """A coordinator that asks at other models than the job says is found out, though releases answer what it asked."""
    files = write_files(tmp_path, {"north": 50, "south": 40})
    job = simulated(files, **ROUNDS)[1]
    assert job.about.table is not None
    header, tensors = job.about.table
    said = {**header["guarantee"], "noise": {**header["guarantee"]["noise"], "simulation": False}}
    about = replace(job.about, table=({**header, "guarantee": said}, tensors))
    job = replace(job, simulation=None, about=about)
    content = job.to_bytes()
    for moved in (False, True):
        out = tmp_path / f"results-{moved}"
        coordinator = Coordinator(out / "study", content)
        files = write_files(new(tmp_path / f"homes-{moved}"), files.sizes)
        for name in files.sizes:
            assert not coordinator.receive(files.agent(name).answer(content)).why
        coordinator.close()
        for name, request in coordinator.pending_requests().items():
            asked = Request.from_bytes(request)
            if moved:
                asked = replace(asked, points=asked.points + 0.01)
                coordinator.request_file(1, name).write_bytes(asked.to_bytes())
            assert not coordinator.receive(files.agent(name).answer(content, asked.to_bytes())).why
        public, options = read_utility(job, files.public), options_for(job, files.public)
        value_study(coordinator, public, options, out, silent)
        shutil.copy(files.public, tmp_path / "public.csv")
        found = verified(out)
        assert found.compared_outputs[-1] == "the requests of later rounds"
        assert [line.split(":")[0].rstrip("0123456789[], ") for line in found.differences] == (
            [f"study/round-1/{name}.request, points" for name in files.sizes] if moved else []
        )
    coordinator.request_file(1, "north").unlink()
    named(out, "north.request")
    (out / "study" / "round-1" / "parties.json").write_text('["north", "south", "zeta"]')
    named(out, "nothing was recomputed")


def new(folder: Path) -> Path:
    folder.mkdir()
    return folder


def test_numbers_may_be_rounded_otherwise_and_no_more(
    study: tuple[Files, dict[str, Key]], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where a processor rounds otherwise, sentences and the page are made again of the numbers that were found."""
    real = value_table

    def rounding(share: float) -> Callable[..., Any]:
        def rounded(table: Any, *given: Any) -> Any:
            noise = torch.randn(table.rows.shape, generator=torch.Generator().manual_seed(0), dtype=table.rows.dtype)
            return real(replace(table, rows=table.rows * (1 + share * noise)), *given)

        return rounded

    files, folder = study[0], tmp_path / "results"
    shutil.copy(files.public, tmp_path / "public.csv")
    releases = [files.folder / f"{name}.release" for name in files.sizes]
    value(files, folder, (files.folder / "study.job").read_bytes(), releases, pay=1e9)  # all digits are told
    monkeypatch.setattr(comparing, "value_table", rounding(CLOSE / 100))
    assert verified(folder).differences == ()
    monkeypatch.setattr(comparing, "value_table", rounding(CLOSE * 100))
    named(folder, "values.csv, line ", ", shapley:")  # of some party: whose changes most depends on the noise
    named(folder, "values.csv, line ", ", payout:")


def test_parties_as_good_as_equal_may_change_places() -> None:
    made = pd.DataFrame({"party": ["a", "b"], "size": [1, 2], "shapley": [0.5, 0.5 + 1e-12], "rank": [2, 1]})
    made["rank"] = made["rank"].astype("Int64")
    header = "party,size,shapley,rank\n"
    for lines in ("a,1,0.5,2\nb,2,0.500000000001,1\n", "a,1,0.500000000001,1\nb,2,0.5,2\n"):
        found, differences = compare_values("values.csv", header + lines, made, ("shapley",))
        assert differences == []
        assert b"".join(values_csv(found)).decode() == header + lines
    swapped = "a,1,0.5,1\nb,2,0.500000000001,2\n"
    assert compare_values("values.csv", header + swapped, made, ("shapley",))[1] == [
        "values.csv, line 2, rank: '1'; recomputed: '2'", "values.csv, line 3, rank: '2'; recomputed: '1'",
    ]  # fmt: skip


@pytest.mark.parametrize("given", [{"unit": "person", "parties_per_person": 2}, {"neighbours": "replace"}])
def test_the_guarantee_of_each_kind_of_job_is_that_of_its_noise(tmp_path: Path, given: dict[str, Any]) -> None:
    job = write_files(tmp_path).job(**given)
    assert verifying._compare_guarantee(job) == []
    weaker = replace(job.mechanism, noise_multiplier=job.mechanism.noise_multiplier * 0.99)
    assert verifying._compare_guarantee(replace(job, mechanism=weaker))


@pytest.mark.slow
def test_results_of_other_threads_and_instructions_pass(study: tuple[Files, dict[str, Key]], tmp_path: Path) -> None:
    files = study[0]
    shutil.copy(files.public, tmp_path / "public.csv")
    shutil.copy(files.folder / "study.job", tmp_path / "study.job")
    releases = [str(files.folder / f"{name}.release") for name in files.sizes]
    command = "from dpvalue.cli import app; app()"
    other = {"OMP_NUM_THREADS": "2", "ATEN_CPU_CAPABILITY": "default", "OPENBLAS_CORETYPE": "Nehalem"}
    given = ["value", "study.job", *releases, "--out", "results", "--pay", "100000"]
    subprocess.run(
        [sys.executable, "-c", command, *given], cwd=tmp_path, env=os.environ | other, check=True, capture_output=True
    )
    assert verified(tmp_path / "results").differences == ()


def here(*arguments: object) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def test_what_is_said_and_the_exit_code(
    folder: Path, study: tuple[Files, dict[str, Key]], monkeypatch: pytest.MonkeyPatch
) -> None:
    files, keys = study
    roster = folder.parent / "roster.toml"
    roster.write_text("".join(f'[[party]]\nname = "{name}"\nkey = "{keys[name].public}"\n' for name in files.sizes))
    alike = here("verify", folder, "--roster", roster)
    assert alike.exit_code == 0, alike.output
    for words in (
        "results matches its job and the releases of 4 parties",
        "compared: run.toml, table.safetensors, values.csv, run.json, report.html; text exactly, numbers within",
        f"signed: 4 of 4 releases, by the keys in {roster}",
        "a total of 100,000 to pay",
        "cannot be checked: whether parties released honestly",
    ):
        assert words in alike.output
    assert "owners of the keys not checked" in here("verify", folder, "--test", files.public).output
    text = (folder / "values.csv").read_text()
    (folder / "values.csv").write_text(text.replace("\n", "9\n").replace("e9\n", "e\n"))
    other = here("verify", folder)
    assert other.exit_code == 1
    assert "results does not match its job and releases:" in other.output
    assert "values.csv, line 1" in other.output
    (folder / "values.csv").write_text(text)
    unusable: dict[tuple[object, ...], str] = {
        (folder, "--test", files.own("east")): "is not the public file of the job",
        (folder, "--test", "nowhere.csv"): "nowhere.csv",
        (folder, "--roster", folder / "run.toml"): "run.toml",
        (folder.parent,): "is not an output folder of dpvalue run",
    }
    for arguments, why in unusable.items():
        done = here("verify", *arguments)
        assert (done.exit_code, done.stderr.count("\n")) == (2, 1), done.output
        assert why in done.stderr
    with monkeypatch.context() as newer:
        newer.setattr(verifying, "__version__", "9.9.9")
        done = here("verify", folder)
    assert (done.exit_code, done.stderr.count("\n")) == (2, 1)
    assert "results cannot be compared: it has dpvalue '0." in done.stderr
    job = Job.load(folder / "study" / "study.job")
    (folder / "study" / "study.job").write_bytes(Archive("job", Job.archive.version - 1).pack(*job.parts()))
    assert "results cannot be compared" in here("verify", folder).stderr
    shutil.rmtree(folder / "study")
    local = here("verify", folder)
    assert local.exit_code == 2
    assert "is of a local run, which stores no releases" in local.stderr
