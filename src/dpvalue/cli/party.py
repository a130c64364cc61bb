"""`dpvalue party check`, `answer` and `serve`: answer jobs with your own file, ledger and noise."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpvalue.cli.common import CHECK_ADVICE, app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.party.agent import Agent
    from dpvalue.privacy.ledger import Ledger

party_app = typer.Typer(
    help="Answer jobs on your own machine, with your own file, ledger and noise.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
app.add_typer(party_app, name="party")
Ledgered = Annotated[Path | None, option("Your ledger (dpvalue ledger new).")]
HeadFile = Annotated[Path | None, option("File that stores the ledger's latest hash.")]
_MOST_BYTES = 2**27  # of an earlier release that is written over
PolicyFile = Annotated[Path | None, option("Your policy.toml; by default the ledger's terms.")]


@party_app.command("check")
def party_check(
    job: Annotated[Path, argument()],
    file: Annotated[Path, argument()],
    name: Annotated[str, option("Your name, as the coordinator knows it.")] = "",
    ledger: Ledgered = None,
    head: HeadFile = None,
    policy: PolicyFile = None,
) -> None:
    """Show what an answer to a job would send and spend. Nothing is released.

    Example: dpvalue party check study.job my.csv --ledger my.ledger
    """
    with failing_clearly():
        from dpvalue.display import counted
        from dpvalue.protocol.archive import read_bytes

        agent = make_agent(name, file, ledger, head, policy, None)
        content = read_bytes(job, "a job")
        require_other_than_public(job, content, file)
        weighed = agent.assess(content)
        units = "persons" if weighed.job.privacy.unit == "person" else "records"
        out.print(f"from: {weighed.asker}")
        releases = counted(weighed.job.rounds, "release")
        numbers = counted(weighed.job.size, "number")
        out.print(f"would send: {releases} of {numbers} with noise, and your number of {units} ({weighed.units})")
        out.print(f"would read: {', '.join(weighed.columns)}", markup=False)
        assert agent.ledger is not None
        budget = agent.ledger.budget
        out.print(f"would spend: epsilon = {weighed.epsilon:.4g} per {budget.unit} (computed from the noise)")
        out.print(f"spent so far: epsilon = {weighed.spent:.4g} of {budget.epsilon:.4g}")
        out.print(CHECK_ADVICE)
    out.print("Nothing was released.")


@party_app.command("answer")
def party_answer(
    job: Annotated[Path, argument()],
    file: Annotated[Path, argument()],
    name: Annotated[str, option("Your name, as the coordinator knows it.")] = "",
    ledger: Ledgered = None,
    out_: Annotated[Path | None, option("Output file; NAME.release.", "--out")] = None,
    request: Annotated[Path | None, option("Request file, for rounds after the first.")] = None,
    head: HeadFile = None,
    policy: PolicyFile = None,
    key: Annotated[Path | None, option("Sign with this key (dpvalue key new).")] = None,
) -> None:
    """Answer a job: write a release with noise, and charge it to your ledger.

    Answering the same job again writes the same release and spends nothing.

    Example: dpvalue party answer study.job my.csv --name site-a --ledger my.ledger --out site-a.release
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.protocol.archive import read_bytes
        from dpvalue.storage import write_whole

        if not name:
            raise DpvalueError("--name must be given: your name, as the coordinator knows it")
        agent = make_agent(name, file, ledger, head, policy, key)
        content = read_bytes(job, "a job")
        require_other_than_public(job, content, file)
        place = out_ or Path(f"{name}.release")
        _require_place(place, name)
        asked = b"" if request is None else read_bytes(request, "a request")
        release = agent.answer(content, asked)
        write_whole(place, release)
        assert agent.ledger is not None
        out.print(f"written to {place} ({len(release):,} bytes). Send it to the coordinator.", markup=False)
        out.print(f"spent so far: epsilon = {agent.ledger.spent_epsilon:.4g} of {agent.ledger.budget.epsilon:.4g}")
        out.print(f"ledger head (store it elsewhere): {agent.ledger.head()}")


def _require_place(path: Path, name: str) -> None:
    """Raise unless nothing but an earlier release of the party, which its ledger keeps, would be overwritten."""
    from dpvalue.errors import DpvalueError
    from dpvalue.protocol.archive import read_bytes
    from dpvalue.protocol.messages import Release
    from dpvalue.stored import refuse_unreadable

    if not path.parent.is_dir():
        raise DpvalueError(f"folder {path.parent} does not exist")
    if not os.path.lexists(path):
        return
    try:
        with refuse_unreadable("a release"):
            is_own = Release.from_bytes(read_bytes(path, "a release", _MOST_BYTES)).party == name
    except DpvalueError:
        is_own = False
    if not is_own:
        raise DpvalueError(
            f"out must be a new file, or one with a release of {name!r}; there is another file at {path}"
        )


@party_app.command("serve")
def party_serve(
    file: Annotated[Path, argument()],
    superlink: Annotated[str, option("Address of the coordinator's SuperLink, HOST:PORT.")] = "",
    ca: Annotated[Path | None, option("Certificate authority of the SuperLink.")] = None,
    node_key: Annotated[Path | None, option("Key of your node (dpvalue flower node).")] = None,
    name: Annotated[str, option("Your name, as the coordinator knows it.")] = "",
    ledger: Ledgered = None,
    head: HeadFile = None,
    policy: PolicyFile = None,
    key: Annotated[Path | None, option("Sign with this key (dpvalue key new).")] = None,
    folder: Annotated[Path, option("Folder for Flower's files; serve.")] = Path("serve"),
) -> None:
    """Answer jobs over Flower until Ctrl-C. Only code installed on this machine runs.

    Example: dpvalue party serve my.csv --superlink host:9092 --ca ca.crt --node-key my.node --name site-a
    --ledger my.ledger --policy policy.toml
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import Link, environment, supernode
        from dpvalue.flower.supervise import SupervisedProcess
        from dpvalue.storage import folder_lock, require_secret

        given = {"superlink": superlink, "ca": ca, "node-key": node_key, "name": name, "policy": policy}
        missing = [option for option, value in given.items() if not value]
        if missing or ca is None or node_key is None:
            raise DpvalueError(f"--{missing[0]} must be given")
        agent = make_agent(name, file, ledger, head, policy, key)
        require_secret(node_key)
        with folder_lock(folder):
            secret, port = own_secret(folder / "secret"), free_port()
            command = supernode(Link(superlink, ca), node_key, port, folder / "secret")
            with SupervisedProcess(command, environment(folder / "flwr"), folder / "node.log"):
                out.print(f"{name}: connected to {superlink}; log: {folder / 'node.log'}. Press Ctrl-C to stop.")
                serve_agent(agent, f"127.0.0.1:{port}", secret, folder)


def require_other_than_public(job: Path, content: bytes, file: Path) -> None:
    """Raise if a party's file is the public file beside the job."""
    from dpvalue.coordinator.study import public_name
    from dpvalue.data.checks import require_other_file
    from dpvalue.protocol.job import Job

    name = public_name(Job.from_bytes(content, str(job)))
    if name:
        require_other_file([file], job.parent / name)


def serve_agent(agent: Agent, address: str, secret: bytes, folder: Path) -> None:
    """Answer the requests of a SuperNode, until interrupted."""
    from dpvalue.flower.runtime import Node
    from dpvalue.flower.serve import serve
    from dpvalue.party.agent import Refusal
    from dpvalue.protocol.transport import Question, Reply

    def respond(asked: Question) -> Reply:
        try:
            release = agent.answer(asked.job, asked.request)
        except Refusal as refused:
            out.print(f"refused: {refused}", markup=False)
            return Reply(b"", refused.public)
        out.print("answered a request")
        return Reply(release, "")

    try:
        node = Node(address, secret=secret, memory=folder / "task.json")
        serve(respond, node, tick=agent.policy.limits.tick, stop=lambda: False)
    except KeyboardInterrupt:
        out.print("stopped")


def own_secret(path: Path) -> bytes:
    """Return the secret shared by the agent and its SuperNode; created on the first call."""
    import secrets

    from dpvalue.storage import OWNER_ALONE, file_lock, require_secret, write_whole

    with file_lock(path):
        if not path.is_file():
            write_whole(path, secrets.token_bytes(32), OWNER_ALONE)
    require_secret(path)
    return path.read_bytes()


def free_port() -> int:
    """Return a free port of this machine."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def make_agent(
    name: str, file: Path, ledger: Path | None, head: Path | None, policy: Path | None, key: Path | None
) -> Agent:
    """Return the agent of a party from command-line options; the name defaults to the ledger's."""
    from dpvalue.errors import DpvalueError
    from dpvalue.party.agent import Agent
    from dpvalue.party.party import PartyFile
    from dpvalue.party.policy import Policy, read_policy
    from dpvalue.privacy.ledger import Ledger
    from dpvalue.protocol.archive import Key

    if ledger is None:
        raise DpvalueError("--ledger must be given: create one with dpvalue ledger new")
    opened = Ledger(ledger, head=head)
    rules = Policy.of_ledger(opened.budget, opened.terms.person) if policy is None else read_policy(policy)
    signing = None if key is None else Key.read(key)
    agent = Agent(name or _holder(opened), PartyFile(file, rules.protection.person), opened, rules, signing)
    agent.require_ledger()
    return agent


def _holder(ledger: Ledger) -> str:
    """Return the default name of a ledger's party: its holder, or its only party."""
    if ledger.budget.unit != "party":
        return ledger.terms.name
    return ledger.parties[0] if isinstance(ledger.parties, tuple) and len(ledger.parties) == 1 else ""
