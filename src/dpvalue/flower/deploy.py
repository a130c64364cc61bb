"""Flower's commands, as a study needs them: encrypted, nodes known by their keys, nothing sent to anybody else.

    files = write_authority(folder, "127.0.0.1")
    link = Link("127.0.0.1:9091", files.authority)
    with Kept(superlink(link, files, folder / "link.db"), environment(home), folder / "link.log"):
        write_link(home, link)                      # so that the flwr command finds the SuperLink
        register(home, public_key_of_a_party)
        submit(home, write_app(folder / "app", {"coordinator": "package.module:function"}))

A SuperLink takes runs, and executes their ServerApp's code, from whoever can reach its port: nodes are known by keys,
those who submit are not. Let others than the coordinator reach paths under /v1/fleet/ only (a proxy in front of it); a
party needs no more. What a run can do to a party is what any coordinator can do: ask.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dpvalue.durable import write_whole
from dpvalue.errors import DpvalueError
from dpvalue.flower.keys import Certificates

_NAME = "study"
_LIMIT = 120.0  # seconds of one flwr command

_APP = """\
[project]
name = "dpvalue-study"
version = "1.0.0"
description = "A study of dpvalue; its code is installed, not sent."
license = "Apache-2.0"
dependencies = []

[tool.flwr.app]
publisher = "dpvalue"

[tool.flwr.app.components]
serverapp = "dpvalue.flower.app:app"
clientapp = "dpvalue.flower.app:refusing"

[tool.flwr.app.config]
"""


@dataclass(frozen=True)
class Link:
    """Where a SuperLink is, and by which authority it is known."""

    address: str
    authority: Path


def environment(home: Path) -> dict[str, str]:
    """Return a Flower process's environment: no telemetry, update check, proxy or installing; its files in `home`."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.lower().endswith("_proxy") and not name.startswith("FLWR_")
    }
    return {
        **kept,
        "PATH": os.pathsep.join([str(_programs()), kept.get("PATH", os.defpath)]),
        "FLWR_HOME": str(home.absolute()),
        "FLWR_TELEMETRY_ENABLED": "0",
        "FLWR_DISABLE_UPDATE_CHECK": "1",
        "FLWR_DISABLE_RUNTIME_DEPENDENCY_INSTALLATION": "1",
        "FLWR_SUPEREXEC_TASK_POLL_INTERVAL": "0.2",
        "RAY_USAGE_STATS_ENABLED": "0",
    }


def superlink(link: Link, files: Certificates, database: Path) -> list[str]:
    """Return the command of a SuperLink, which knows nodes by their keys."""
    host, _, port = link.address.rpartition(":")
    return [
        *(_program("flower-superlink"), "--host", host, "--port", port, "--database", str(database)),
        *("--ssl-ca-certfile", str(files.authority), "--ssl-certfile", str(files.certificate)),
        *("--ssl-keyfile", str(files.key)),
        *("--enable-supernode-auth", "--disable-runtime-dependency-installation"),
    ]


def supernode(link: Link, key: Path, port: int, secret: Path | None = None) -> list[str]:
    """Return the command of a party's SuperNode: it hands tasks to whoever asks at this port of this machine.

    Args:
        link: the SuperLink.
        key: the node's private key (`keys.write_node_key`).
        port: where the party's agent finds it (`serve.Node`).
        secret: a file with a secret that the agent must know, of at least 32 bytes.
    """
    return [
        *(_program("flower-supernode"), "--superlink", link.address, "--root-certificates", str(link.authority)),
        *("--auth-supernode-private-key", str(key), "--isolation", "process"),
        *("--host", "127.0.0.1", "--port", str(port)),
        *(() if secret is None else ("--superexec-auth-secret-file", str(secret))),
    ]


def write_link(home: Path, link: Link) -> None:
    """Write into a Flower home where the SuperLink is."""
    home.mkdir(parents=True, exist_ok=True)
    address, authority = json.dumps(link.address), json.dumps(str(link.authority.absolute()))
    section = f"[superlink.{_NAME}]\naddress = {address}\nroot-certificates = {authority}\n"
    write_whole(home / "config.toml", f'[superlink]\ndefault = "{_NAME}"\n\n{section}'.encode())


def register(home: Path, public_key: Path) -> int:
    """Let a SuperNode take part, by its public key, and return its number."""
    return int(_flwr(home, "supernode", "register", str(public_key), _NAME)["node-id"])


def write_app(folder: Path, config: Mapping[str, str | int | float | bool]) -> Path:
    """Write the folder that `flwr run` wants, without any code, and return it."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in config.items())
    write_whole(folder / "pyproject.toml", (_APP + lines).encode())
    return folder


def submit(home: Path, app: Path) -> int:
    """Start a run of an app, and return its number."""
    return int(_flwr(home, "run", str(app), _NAME)["run-id"])


def status(home: Path, run: int) -> str:
    """Return how a run stands: "pending", "starting", "running", "finished:completed", "finished:failed" and so on."""
    runs = _flwr(home, "list", "--run-id", str(run), _NAME)["runs"]
    return str(runs[0]["status"])


def _flwr(home: Path, *arguments: str) -> dict[str, Any]:
    """What a flwr command says, in JSON."""
    command = [_program("flwr"), *arguments, "--format", "json"]
    done = subprocess.run(command, env=environment(home), capture_output=True, text=True, timeout=_LIMIT, check=False)
    start = done.stdout.find("{")
    try:
        said = json.loads(done.stdout[start:]) if start >= 0 else {}
    except json.JSONDecodeError:
        said = {}
    if done.returncode or not said.get("success"):
        raise DpvalueError(f"flwr {' '.join(arguments)} failed: {(said or done.stdout or done.stderr)!r}")
    return dict(said)


def _program(name: str) -> str:
    """The path of one of Flower's programs."""
    path = _programs() / name
    if not path.exists():
        raise DpvalueError(f"{name} is not installed: pip install 'dpvalue[flower]'")
    return str(path)


def _programs() -> Path:
    return Path(sys.executable).parent
