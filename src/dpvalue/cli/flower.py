"""`dpvalue flower`: a study over Flower, for its coordinator; `dpvalue party serve` is the party's side."""

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
    help="A study over Flower, for its coordinator (pip install 'dpvalue[flower]').",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(flower_app, name="flower")
_TRIES = 60
Linked = Annotated[Path, option("The folder of the SuperLink; link.", "--link")]


@flower_app.command("new")
def flower_new(
    folder: Annotated[Path, argument()],
    host: Annotated[str, option("The name or address that parties reach; 127.0.0.1.")] = "127.0.0.1",
    port: Annotated[int, option("The port; 9092.")] = 9092,
) -> None:
    """Make the folder of a SuperLink: its certificate, and that of an authority of its own for parties to know it by.

    Example: dpvalue flower new link --host study.example.org
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import Link, write_authority, write_link
        from dpvalue.storage import write_whole

        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise DpvalueError(f"there is {folder} already: a SuperLink's folder is made once") from None
        link = Link(f"{host}:{port}", write_authority(folder, host).authority)
        write_link(folder / "flwr", link)
        write_whole(folder / "link.json", f"{json.dumps({'address': link.address})}\n".encode())
    out.print(f"{folder}: the SuperLink at {link.address}. Give parties this address and {folder / 'ca.crt'}.")


@flower_app.command("link")
def flower_link(folder: Annotated[Path, argument()]) -> None:
    """Run the SuperLink of a folder until it is stopped; it is started again if it ends.

    Example: dpvalue flower link link
    """
    with failing_clearly():
        from dpvalue.flower.deploy import Certificates, environment, superlink
        from dpvalue.flower.supervise import SupervisedProcess
        from dpvalue.storage import held, require_secret

        link = _link(folder)
        files = Certificates(folder / "ca.crt", folder / "server.crt", folder / "server.key")
        require_secret(files.key)
        command = superlink(link, files, folder / "link.db")
        with held(folder), SupervisedProcess(command, environment(folder / "flwr"), folder / "link.log"):
            out.print(f"SuperLink at {link.address}; what it says is in {folder / 'link.log'}. Ctrl-C stops it.")
            _wait_for_ever()


@flower_app.command("register")
def flower_register(folder: Annotated[Path, argument()], keys: Annotated[list[Path], argument()]) -> None:
    """Let parties take part, by the public keys of their nodes (dpvalue flower node).

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
    """Make the key of a party's node; the coordinator registers the file that ends in .pub.

    Example: dpvalue flower node site-a.node
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import write_node_key

        if path.exists():
            raise DpvalueError(f"there is a file already at {path}: a key is not written over")
        public = write_node_key(path)
    out.print(f"{path} is yours alone; give the coordinator {public}")


@flower_app.command("run")
def flower_run(
    job: Annotated[Path, argument()],
    link: Linked = Path("link"),
    parties: Annotated[int, option("How many are expected; 2.")] = 2,
    out_: Annotated[Path, option("The folder to write; results.", "--out")] = Path("results"),
    test: Annotated[Path | None, option("The public file; else as the job names it.")] = None,
    roster: Annotated[Path | None, option("roster.toml: names and keys of the parties.")] = None,
    key: Annotated[Path | None, option("The key that the job was signed with.")] = None,
    gather: Annotated[float, option("Seconds to wait for parties to be there; 120.")] = 120.0,
    deadline: Annotated[float, option("Seconds to wait for a round's answers; 300.")] = 300.0,
    pay: Annotated[float | None, option("An amount to share by value.")] = None,
) -> None:
    """Conduct a study: ask all parties that are there, then value what they have released.

    Killed in any way, the same command goes on: nobody is asked for a round differently.

    Example: dpvalue flower run study.job --link link --parties 4 --out results
    """
    with failing_clearly():
        from dpvalue.cli.value import value_releases
        from dpvalue.storage import held

        _wait_for(_link(link).address)
        with held(out_):
            config: dict[str, str | int | float | bool] = {
                "job": str(job.absolute()), "parties": parties, "gather": gather, "deadline": deadline,
                "roster": "" if roster is None else str(roster.absolute()),
                "key": "" if key is None else str(key.absolute()),
            }  # fmt: skip
            sent = _conducted(link, job, out_, config)
            out.print(f"{sent} messages were sent, one for each party and round")
            value_releases(job, [], out_, test, roster, key, pay=pay)


def _conducted(link: Path, job: Path, place: Path, config: dict[str, str | int | float | bool]) -> int:
    """Let the SuperLink conduct a study, wait until it is over, and return how many messages were sent."""
    from dpvalue.coordinator.state import OVER
    from dpvalue.coordinator.study import ENTRY, STATE, require_place
    from dpvalue.errors import DpvalueError
    from dpvalue.flower.deploy import status, submit, write_app
    from dpvalue.protocol.archive import read_bytes
    from dpvalue.protocol.job import Job
    from dpvalue.storage import alone
    from dpvalue.stored import WHOLE, fields, parse_json, read_text

    require_place(place, Job.from_bytes(read_bytes(job, "a job"), str(job)))
    state, home = (place / STATE).absolute(), link / "flwr"
    state.mkdir(parents=True, exist_ok=True)
    (state / OVER).unlink(missing_ok=True)
    with alone(link / "app"):  # two studies at once must not start each other's
        number = submit(home, write_app(link / "app", {"coordinator": ENTRY, "folder": str(state), **config}))
    out.print(f"run {number}: waiting for {config['parties']} parties, then for their answers", markup=False)
    while not (state / OVER).is_file():
        standing = status(home, number)
        if standing.startswith("finished") and not (state / OVER).is_file():
            raise DpvalueError(f"run {number} is {standing}: {link / 'link.log'} says more; the same command goes on")
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
        raise DpvalueError(f"{folder} is not the folder of a SuperLink: dpvalue flower new makes one")
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
    raise DpvalueError(f"no SuperLink listens at {address}: dpvalue flower link runs it")


def _wait_for_ever() -> None:
    try:
        while True:
            time.sleep(1.0)
    except KeyboardInterrupt:
        out.print("stopped")
