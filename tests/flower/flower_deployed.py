"""A study on this machine, of separate processes: one SuperLink, and for each party a SuperNode and an agent."""

from __future__ import annotations

import json
import os
import secrets
import signal
import socket
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from dpvalue.flower import deploy
from dpvalue.flower.supervise import SupervisedProcess

PARTIES = ("ada", "bob", "cyd", "dan")
_HERE = Path(__file__).parent


@dataclass
class Deployed:
    """What runs, and where its files are. The coordinator's are in `folder`, each party's in `folder / name`."""

    folder: Path
    home: Path
    address: deploy.Link
    link: SupervisedProcess
    nodes: dict[str, SupervisedProcess] = field(default_factory=dict)
    agents: dict[str, SupervisedProcess] = field(default_factory=dict)
    numbers: dict[str, int] = field(default_factory=dict)

    def submit(self, study: str, job: str, deadline: float = 20.0, patience: float = 40.0) -> int:
        """Start a run that goes on with a study; the run waits so long (patience) for all parties to be there."""
        (self.folder / f"{study}.over").unlink(missing_ok=True)
        (self.folder / "asked").unlink(missing_ok=True)
        config = {"coordinator": "flower_toys:collect", "folder": str(self.folder), "study": study, "job": job}
        numbers = {"deadline": deadline, "patience": patience, "parties": len(PARTIES)}
        return deploy.submit(self.home, deploy.write_app(self.folder / "app", {**config, **numbers}))

    def over(self, study: str, seconds: float = 100.0) -> dict[str, str]:
        """What a study has, once its run is over: what each party answered, by name."""
        until((self.folder / f"{study}.over").exists, seconds, f"{study} is not over")
        return self.state(study)

    def state(self, study: str) -> dict[str, str]:
        path = self.folder / f"{study}.json"
        found: dict[str, str] = json.loads(path.read_text()) if path.exists() else {}
        return {name: found[str(number)] for name, number in self.numbers.items() if str(number) in found}

    def calls(self, name: str, job: str) -> int:
        """How often a party was asked for a job."""
        path = self.folder / name / f"{name}.calls"
        return path.read_text().split("\n").count(repr(job.encode())) if path.exists() else 0

    def hold(self, job: str) -> None:
        """Let parties wait with their answers to a job."""
        for name in PARTIES:
            (self.folder / name / f"hold {job}").touch()

    def let_go(self) -> None:
        """Let them answer, whatever they wait with."""
        for path in self.folder.glob("*/hold *"):
            path.unlink()

    def server_app(self) -> list[int]:
        """The processes that run the ServerApp."""
        ours = f"FLWR_HOME={self.home}".encode()
        return [pid for pid in _pids() if b"flwr-serverapp" in _read(pid, "cmdline") and ours in _read(pid, "environ")]

    def logs(self) -> str:
        """The ends of all logs, for a failure."""
        return "\n".join(f"== {path.name}\n{path.read_text()[-1500:]}" for path in sorted(self.folder.rglob("*.log")))


def expected(name: str, job: str) -> str:
    """What a party answers to a job."""
    return (job.encode()[::-1] + bytes(range(256))[::-1] + name.encode()).hex()


@contextmanager
def deployed(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Deployed]:
    """Run a study of four parties; whatever happens, nothing runs any more afterwards."""
    monkeypatch.setenv("PYTHONPATH", str(_HERE))  # the coordinator's function is installed where the ServerApp runs
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    files = deploy.write_authority(folder / "tls", "127.0.0.1")
    link = deploy.Link(f"127.0.0.1:{free_port()}", files.authority)
    home = folder / "flwr"
    deploy.write_link(home, link)
    with ExitStack() as stack:
        stack.callback(_end_all, home)
        command = deploy.superlink(link, files, folder / "link.db")
        kept = stack.enter_context(SupervisedProcess(command, deploy.environment(home), folder / "link.log"))
        study = Deployed(folder, home, link, kept)
        until(lambda: _listens(link.address), 60, "no SuperLink")
        try:
            for name in PARTIES:
                own, port = folder / name, free_port()
                own.mkdir()
                (own / "secret").write_bytes(secrets.token_bytes(32))
                study.numbers[name] = deploy.register(home, deploy.write_node_key(own / "node"))
                alone = deploy.environment(own / "flwr")
                node = deploy.supernode(link, own / "node", port, own / "secret")
                study.nodes[name] = stack.enter_context(SupervisedProcess(node, alone, own / "node.log"))
                agent = [sys.executable, str(_HERE / "flower_toys.py"), name, str(port), str(own), str(own / "secret")]
                study.agents[name] = stack.enter_context(SupervisedProcess(agent, alone, own / "agent.log"))
            yield study
        except BaseException:
            print(study.logs())  # noqa: T201
            raise
        finally:
            study.let_go()


def kill(process: SupervisedProcess | int) -> None:
    """As the kernel would, out of memory: at once, without a goodbye."""
    pid = process if isinstance(process, int) else process.pid
    assert pid is not None
    os.kill(pid, signal.SIGKILL)


def until(done: Callable[[], object], seconds: float, otherwise: str) -> None:
    """Wait until something holds; fail if it does not."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, otherwise
        time.sleep(0.1)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def _listens(address: str) -> bool:
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), 1).close()
    except OSError:
        return False
    return True


def _pids() -> list[int]:
    return [int(path.name) for path in Path("/proc").iterdir() if path.name.isdecimal()]


def _read(pid: int, name: str) -> bytes:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes()
    except OSError:
        return b""


def _end_all(home: Path) -> None:
    """What a SuperLink that was killed has left behind: its own children, known by their Flower home."""
    ours = f"FLWR_HOME={home}".encode()
    for pid in _pids():
        if pid != os.getpid() and ours in _read(pid, "environ").split(b"\0"):
            os.kill(pid, signal.SIGKILL)
