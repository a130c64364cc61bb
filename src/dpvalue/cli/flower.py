"""`dpvalue flower`: run a study over Flower, as its coordinator. Parties use `dpvalue party serve`."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpvalue.cli.common import app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.flower.deploy import Link

flower_app = typer.Typer(
    help="Run a study over Flower, as its coordinator (pip install 'dpvalue[flower]').",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(flower_app, name="flower")
_TRIES = 60
Linked = Annotated[Path, option("Folder of the SuperLink; link.", "--link")]


@flower_app.command("new")
def flower_new(
    folder: Annotated[Path, argument()],
    host: Annotated[str, option("Host name or address for the parties; 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, option("Port; 9092.")] = 9092,
) -> None:
    """Create the folder of a SuperLink, with its TLS certificate and a certificate authority.

    Example: dpvalue flower new link --host study.example.org
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import Link, write_authority, write_link
        from dpvalue.storage import write_whole

        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise DpvalueError(f"{folder} already exists: choose a new folder") from None
        link = Link(f"{host}:{port}", write_authority(folder, host).authority)
        write_link(folder / "flwr", link)
        write_whole(folder / "link.json", f"{json.dumps({'address': link.address})}\n".encode())
    out.print(f"{folder}: SuperLink at {link.address}. Send the parties this address and {folder / 'ca.crt'}.")


@flower_app.command("link")
def flower_link(folder: Annotated[Path, argument()]) -> None:
    """Run the SuperLink of a folder until Ctrl-C. It is restarted if it ends.

    Example: dpvalue flower link link
    """
    with failing_clearly():
        from dpvalue.flower.deploy import Certificates, environment, superlink
        from dpvalue.flower.supervise import SupervisedProcess
        from dpvalue.storage import folder_lock, require_secret

        link = _link(folder)
        files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        require_secret(files.key)
        command = superlink(link, files, folder / "link.db")
        with folder_lock(folder), SupervisedProcess(command, environment(folder / "flwr"), folder / "link.log"):
            out.print(f"SuperLink at {link.address}; log: {folder / 'link.log'}. Press Ctrl-C to stop.")
            _wait_for_ever()


@flower_app.command("register")
def flower_register(folder: Annotated[Path, argument()], keys: Annotated[list[Path], argument()]) -> None:
    """Register parties by the public keys of their nodes (dpvalue flower node).

    Example: dpvalue flower register link site-a.node.pub site-b.node.pub
    """
    with failing_clearly():
        from dpvalue.flower.deploy import register

        address = _link(folder).address
        _wait_for(address)
        for key in keys:
            out.print(f"{key}: node {register(folder / 'flwr', key)}")


@flower_app.command("node")
def flower_node(path: Annotated[Path, argument()]) -> None:
    """Create the key of a party's node. The coordinator registers the file that ends in .pub.

    Example: dpvalue flower node site-a.node
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import write_node_key

        if path.exists():
            raise DpvalueError(f"{path} already exists: a key is never overwritten")
        public = write_node_key(path)
    out.print(f"{path}: keep it secret. Send {public} to the coordinator.")


@flower_app.command("run")
def flower_run(
    job: Annotated[Path, argument()],
    link: Linked = Path("link"),
    parties: Annotated[int, option("Expected number of parties; 2.")] = 2,
    out_: Annotated[Path, option("Output folder; results.", "--out")] = Path("results"),
    test: Annotated[Path | None, option("Public file; by default the one the job names.")] = None,
    roster: Annotated[Path | None, option("roster.toml: names and keys of the parties.")] = None,
    key: Annotated[Path | None, option("Key that signed the job.")] = None,
    gather: Annotated[float, option("Seconds to wait for parties to connect; 120.")] = 120.0,
    deadline: Annotated[float, option("Seconds to wait for the releases of a round; 300.")] = 300.0,
    pay: Annotated[float | None, option("Amount to share in proportion to values.")] = None,
) -> None:
    """Run a study: ask all connected parties for their releases, then compute values.

    If the command is interrupted, run it again: it resumes and repeats the same requests.

    Example: dpvalue flower run study.job --link link --parties 4 --out results
    """
    with failing_clearly():
        from dpvalue.cli.value import value_releases
        from dpvalue.storage import folder_lock

        _wait_for(_link(link).address)
        with folder_lock(out_):
            config: dict[str, str | int | float | bool] = {
                "job": str(job.absolute()), "parties": parties, "gather": gather, "deadline": deadline,
                "roster": "" if roster is None else str(roster.absolute()),
                "key": "" if key is None else str(key.absolute()),
            }  # fmt: skip
            sent = _conducted(link, job, out_, config)
            out.print(f"messages sent: {sent}, one per party and round")
            value_releases(job, [], out_, test, roster, key, pay=pay)


def _conducted(link: Path, job: Path, place: Path, config: dict[str, str | int | float | bool]) -> int:
    """Submit a study to the SuperLink, wait until it ends, and return the number of messages sent."""
    from dpvalue.coordinator.state import OVER
    from dpvalue.coordinator.study import ENTRY, STATE, require_place
    from dpvalue.errors import DpvalueError
    from dpvalue.flower.deploy import status, submit, write_app
    from dpvalue.protocol.archive import read_bytes
    from dpvalue.protocol.job import Job
    from dpvalue.storage import file_lock
    from dpvalue.stored import WHOLE, fields, parse_json, read_text

    require_place(place, Job.from_bytes(read_bytes(job, "a job"), str(job)))
    state, home = (place / STATE).absolute(), link / "flwr"
    state.mkdir(parents=True, exist_ok=True)
    (state / OVER).unlink(missing_ok=True)
    with file_lock(link / "app"):  # two studies at once must not start each other's
        number = submit(home, write_app(link / "app", {"coordinator": ENTRY, "folder": str(state), **config}))
    out.print(f"run {number}: waiting for {config['parties']} parties and their releases", markup=False)
    while not (state / OVER).is_file():
        standing = status(home, number)
        if standing.startswith("finished") and not (state / OVER).is_file():
            raise DpvalueError(
                f"run {number} is {standing}: see {link / 'link.log'}; run the same command again to resume"
            )
        time.sleep(1.0)
    over = state / OVER
    said = parse_json(read_text(over), str(over))
    fields(messages=WHOLE)(str(over), said)
    return int(said["messages"])


def _link(folder: Path) -> Link:
    """The SuperLink of a folder."""
    from dpvalue.errors import DpvalueError
    from dpvalue.flower.deploy import Link
    from dpvalue.stored import fields, must_be, parse_json, read_text

    file = folder / "link.json"
    if not file.is_file():
        raise DpvalueError(f"{folder} is not the folder of a SuperLink: create one with dpvalue flower new")
    said = parse_json(read_text(file), str(file))
    is_address = must_be("HOST:PORT", lambda found: isinstance(found, str) and found.rpartition(":")[2].isdecimal())
    fields(address=is_address)(str(file), said)
    return Link(said["address"], folder / "ca.crt")


def _wait_for(address: str) -> None:
    """Return once a SuperLink listens; raise if it does not within a minute."""
    import socket

    from dpvalue.errors import DpvalueError

    host, _, port = address.rpartition(":")
    for _ in range(_TRIES):
        try:
            socket.create_connection((host, int(port)), 1.0).close()
        except OSError:
            time.sleep(1.0)
        else:
            return
    raise DpvalueError(f"no SuperLink listens at {address}: start it with dpvalue flower link")


def _wait_for_ever() -> None:
    try:
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        out.print("stopped")
