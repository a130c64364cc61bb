"""A study over Flower, deployed on this machine: TLS, nodes known by keys, every party's agent a process of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from dpvalue.errors import DpvalueError
from dpvalue.flower import deploy
from dpvalue.protocol.transport import FAILED
from tests.flower.flower_deployed import PARTIES, Deployed, deployed, expected, free_port, kill, until
from tests.flower.flower_toys import ROW

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform != "linux", reason="looks for processes in /proc"),
]


def test_a_study_and_a_hostile_coordinator(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deployed(tmp_path, monkeypatch) as study:
        study.submit("first", "hello")
        assert study.over("first") == {name: expected(name, "hello") for name in PARTIES}
        assert [study.calls(name, "hello") for name in PARTIES] == [1, 1, 1, 1]

        run = study.submit("second", "raise")
        assert study.over("second") == dict.fromkeys(PARTIES, FAILED)
        until(lambda: deploy.status(study.home, run) == "finished:completed", 30, "the run does not finish")
        seen = [
            path for path in tmp_path.rglob("*") if path.is_file() and path.parts[len(tmp_path.parts)] not in PARTIES
        ]
        assert tmp_path / "link.db" in seen
        assert not [path for path in seen if ROW.encode() in path.read_bytes()]

        _hostile(study)
        _stranger(study)


def _stranger(study: Deployed) -> None:
    """Who is not registered cannot take part."""
    deploy.write_node_key(study.folder / "stranger")
    command = deploy.supernode(study.address, study.folder / "stranger", free_port())
    alone = deploy.environment(study.folder / "strange")
    done = subprocess.run(command, env=alone, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode != 0
    assert "Failed to initialize the connection" in done.stdout + done.stderr


_SERVER = """
from pathlib import Path
from flwr.serverapp import ServerApp
from flower_toys import ask_nonsense
from dpvalue.flower.app import GridNodes

Path({folder!r}, "server was imported").touch()
app = ServerApp()

@app.main()
def main(grid, context):
    ask_nonsense(GridNodes(grid), {{"folder": {folder!r}, "deadline": 60}})
"""

_CLIENT = """
from pathlib import Path
Path({folder!r}, "client was imported").touch()
app = None
raise RuntimeError(Path({folder!r}, "ada", "secret").read_bytes().hex())
"""


def _hostile(study: Deployed) -> None:
    """A bundle with code for parties, and messages that are no questions: nothing of it is run or answered."""
    app = deploy.write_app(study.folder / "hostile", {"coordinator": ""})
    code = app / "hostile"
    code.mkdir()
    for name, text in {"__init__": "", "server": _SERVER, "client": _CLIENT}.items():
        (code / f"{name}.py").write_text(text.format(folder=str(study.folder)))
    config = (app / "pyproject.toml").read_text()
    config = config.replace("dpvalue.flower.app:app", "hostile.server:app")
    (app / "pyproject.toml").write_text(config.replace("dpvalue.flower.app:refusing", "hostile.client:app"))
    trap = study.folder / "client was imported"
    subprocess.run([sys.executable, "-c", "import hostile.client"], cwd=app, check=False, capture_output=True)
    trap.unlink()  # it was set: whoever imports the client falls into it

    before = {name: (study.folder / name / f"{name}.calls").read_text() for name in PARTIES}
    deploy.submit(study.home, app)
    said = study.folder / "nonsense.json"
    until(said.exists, 150, "no answers to nonsense")
    answers = json.loads(said.read_text())
    refusal = repr({"dpvalue": {"release": b"", "refused": FAILED}})
    assert answers["said"] == [refusal] * answers["asked"]
    assert (study.folder / "server was imported").exists()
    assert not trap.exists()
    assert not [path for name in PARTIES for path in (study.folder / name).rglob("client.py*")]
    assert {name: (study.folder / name / f"{name}.calls").read_text() for name in PARTIES} == before


def test_kills_in_mid_round(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with deployed(tmp_path, monkeypatch) as study:
        # An agent and a SuperNode: the others finish the round. Both are started again; the agent may still be in time.
        study.hold("one")
        study.submit("first", "one")
        until(lambda: all(study.calls(name, "one") for name in PARTIES), 120, "not everybody is asked")
        kill(study.agents["ada"])
        kill(study.nodes["bob"])
        study.let_go()
        rest = PARTIES[2:]
        assert study.over("first").items() >= {name: expected(name, "one") for name in rest}.items()
        assert "bob" not in study.state("first")

        # The ServerApp: parties that were asked have answered somebody who is gone.
        study.hold("two")
        study.submit("second", "two", patience=0)
        until(lambda: all(study.calls(name, "two") for name in rest), 120, "nobody is asked")
        (app,) = study.server_app()
        kill(app)
        study.let_go()

        # The SuperLink, which is started again on its database.
        study.hold("three")
        study.submit("third", "three", patience=0)
        until(lambda: all(study.calls(name, "three") for name in rest), 120, "nobody is asked")
        kill(study.link)
        study.let_go()

        # New runs on the saved state finish all three studies.
        until(lambda: _submits(study, "first", "one"), 120, "no SuperLink")
        assert _in_the_end(study, "first", "one") == {name: expected(name, "one") for name in PARTIES}
        assert [study.calls(name, "one") for name in rest] == [1, 1]
        for name, job in (("second", "two"), ("third", "three")):
            study.submit(name, job)
            assert _in_the_end(study, name, job) == {party: expected(party, job) for party in PARTIES}


def _in_the_end(study: Deployed, name: str, job: str) -> dict[str, str]:
    """What a study has once runs find everybody: for a minute a SuperNode that was killed still counts as there."""
    for _ in range(4):
        if len(found := study.over(name)) == len(PARTIES):
            break
        study.submit(name, job)
    return found


def _submits(study: Deployed, name: str, job: str) -> bool:
    """Whether a run could be started: not before the SuperLink is back."""
    try:
        study.submit(name, job, patience=80)
    except DpvalueError:
        return False
    return True
