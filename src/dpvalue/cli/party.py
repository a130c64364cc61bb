"""`dpvalue party check`, `answer` and `serve`: a party at home, with its own file, ledger and noise."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from dpvalue.cli.common import CHECK_ADVICE, app, argument, failing_clearly, option, out

if TYPE_CHECKING:
    from dpvalue.party.agent import Agent
    from dpvalue.privacy.ledger import Ledger

party_app = typer.Typer(
    help="Answer a job at home, with your own file, ledger and noise.", no_args_is_help=True, rich_markup_mode=None
)
app.add_typer(party_app, name="party")
Ledgered = Annotated[Path | None, option("Your ledger (dpvalue ledger new).")]
Headed = Annotated[Path | None, option("The file that keeps its head.")]
Ruled = Annotated[Path | None, option("Your policy.toml; else what the ledger says.")]


@party_app.command("check")
def party_check(
    job: Annotated[Path, argument()],
    file: Annotated[Path, argument()],
    name: Annotated[str, option("Yours, as the coordinator knows you.")] = "",
    ledger: Ledgered = None,
    head: Headed = None,
    policy: Ruled = None,
) -> None:
    """Say what answering a job with your file would send and spend. Nothing is released.

    Example: dpvalue party check study.job my.csv --ledger my.ledger
    """
    with failing_clearly():
        from dpvalue.protocol.archive import read_bytes

        agent = make_agent(name, file, ledger, head, policy, None)
        content = read_bytes(job, "a job")
        require_other_than_public(job, content, file)
        weighed = agent.assess(content)
        counted = "persons" if weighed.job.privacy.unit == "person" else "records"
        out.print(f"from: {weighed.asker}")
        often = "once" if weighed.job.rounds == 1 else f"{weighed.job.rounds} times"
        out.print(
            f"would send: {weighed.job.size} numbers with noise, {often}; and that you have {weighed.units} {counted}"
        )
        out.print(f"would read: {', '.join(weighed.columns)}", markup=False)
        assert agent.ledger is not None
        budget = agent.ledger.budget
        out.print(f"would spend: epsilon = {weighed.epsilon:.4g} per {budget.unit}, computed from the noise")
        out.print(f"spent so far: epsilon = {weighed.spent:.4g} of {budget.epsilon:.4g}")
        out.print(CHECK_ADVICE)
    out.print("Nothing was released.")


@party_app.command("answer")
def party_answer(
    job: Annotated[Path, argument()],
    file: Annotated[Path, argument()],
    name: Annotated[str, option("Yours, as the coordinator knows you.")] = "",
    ledger: Ledgered = None,
    out_: Annotated[Path | None, option("The file to write; NAME.release.", "--out")] = None,
    request: Annotated[Path | None, option("Of a later round; the first needs none.")] = None,
    head: Headed = None,
    policy: Ruled = None,
    key: Annotated[Path | None, option("Sign with this key (dpvalue key new).")] = None,
) -> None:
    """Answer a job with your file: the numbers it asks for, with noise, charged to your ledger.

    The same again writes the same answer, and spends nothing more.

    Example: dpvalue party answer study.job my.csv --name site-a --ledger my.ledger --out site-a.release
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.protocol.archive import read_bytes
        from dpvalue.storage import write_whole

        if not name:
            raise DpvalueError("name must be given: --name, yours as the coordinator knows you")
        agent = make_agent(name, file, ledger, head, policy, key)
        content = read_bytes(job, "a job")
        require_other_than_public(job, content, file)
        place = out_ or Path(f"{name}.release")
        if not place.parent.is_dir():
            raise DpvalueError(f"there is no folder {place.parent}")
        asked = b"" if request is None else read_bytes(request, "a request")
        release = agent.answer(content, asked)
        write_whole(place, release)
        assert agent.ledger is not None
        out.print(f"written to {place}: {len(release):,} bytes, to send back", markup=False)
        out.print(f"spent so far: epsilon = {agent.ledger.spent_epsilon:.4g} of {agent.ledger.budget.epsilon:.4g}")
        out.print(f"head of the ledger, to keep elsewhere: {agent.ledger.head()}")


@party_app.command("serve")
def party_serve(
    file: Annotated[Path, argument()],
    superlink: Annotated[str, option("Where the coordinator's SuperLink is, HOST:PORT.")] = "",
    ca: Annotated[Path | None, option("The certificate that it is known by.")] = None,
    node_key: Annotated[Path | None, option("The key of your node (dpvalue flower node).")] = None,
    name: Annotated[str, option("Yours, as the coordinator knows you.")] = "",
    ledger: Ledgered = None,
    head: Headed = None,
    policy: Ruled = None,
    key: Annotated[Path | None, option("Sign with this key (dpvalue key new).")] = None,
    folder: Annotated[Path, option("Where Flower keeps its files; serve.")] = Path("serve"),
) -> None:
    """Answer jobs that come over Flower, until stopped; only with code that is installed here.

    Example: dpvalue party serve my.csv --superlink host:9092 --ca ca.crt --node-key my.node --name site-a
    --ledger my.ledger --policy policy.toml
    """
    with failing_clearly():
        from dpvalue.errors import DpvalueError
        from dpvalue.flower.deploy import Link, environment, supernode
        from dpvalue.flower.supervise import SupervisedProcess
        from dpvalue.storage import held, require_secret

        given = {"superlink": superlink, "ca": ca, "node-key": node_key, "name": name, "policy": policy}
        missing = [option for option, value in given.items() if not value]
        if missing or ca is None or node_key is None:
            raise DpvalueError(f"{missing[0]} must be given: --{missing[0]}")
        agent = make_agent(name, file, ledger, head, policy, key)
        require_secret(node_key)
        with held(folder):
            secret, port = own_secret(folder / "secret"), free_port()
            command = supernode(Link(superlink, ca), node_key, port, folder / "secret")
            with SupervisedProcess(command, environment(folder / "flwr"), folder / "node.log"):
                out.print(f"{name}: answering {superlink}; the node writes {folder / 'node.log'}. Ctrl-C stops.")
                serve_agent(agent, f"127.0.0.1:{port}", secret, folder)


def require_other_than_public(job: Path, content: bytes, file: Path) -> None:
    """Raise if a party's file is the public one, where that stands beside the job."""
    from dpvalue.coordinator.study import public_name
    from dpvalue.data.checks import require_other_file
    from dpvalue.protocol.job import Job

    name = public_name(Job.from_bytes(content, str(job)))
    if name:
        require_other_file([file], job.parent / name)


def serve_agent(agent: Agent, address: str, secret: bytes, folder: Path) -> None:
    """Answer what a SuperNode hands out, until interrupted."""
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
    """Return what the agent and its SuperNode know each other by; made at the first call."""
    import secrets

    from dpvalue.storage import OWNER_ALONE, alone, require_secret, write_whole

    with alone(path):
        if not path.is_file():
            write_whole(path, secrets.token_bytes(32), OWNER_ALONE)
    require_secret(path)
    return path.read_bytes()


def free_port() -> int:
    """Return a port of this machine that nobody listens at."""
    import socket

    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def make_agent(
    name: str, file: Path, ledger: Path | None, head: Path | None, policy: Path | None, key: Path | None
) -> Agent:
    """Return the agent of a party, as its options say; without a name, that of its ledger."""
    from dpvalue.errors import DpvalueError
    from dpvalue.party.agent import Agent
    from dpvalue.party.party import PartyFile
    from dpvalue.party.policy import Policy, read_policy
    from dpvalue.privacy.ledger import Ledger
    from dpvalue.protocol.archive import Key

    if ledger is None:
        raise DpvalueError("ledger must be given: --ledger, yours; dpvalue ledger new makes one")
    opened = Ledger(ledger, head=head)
    rules = Policy.of_ledger(opened.budget, opened.terms.person) if policy is None else read_policy(policy)
    signing = None if key is None else Key.read(key)
    agent = Agent(name or _holder(opened), PartyFile(file, rules.protection.person), opened, rules, signing)
    agent.require_ledger()
    return agent


def _holder(ledger: Ledger) -> str:
    """Who answers with a ledger if no name is given: its holder, or its only party."""
    if ledger.budget.unit != "party":
        return ledger.terms.name
    return ledger.parties[0] if isinstance(ledger.parties, tuple) and len(ledger.parties) == 1 else ""
