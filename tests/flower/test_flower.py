"""The pipe of bytes, and the party's side of it against a SuperNode's own API, in one process."""

from __future__ import annotations

import logging
import os
import signal
import socket
import stat
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.serialization import load_ssh_private_key, load_ssh_public_key
from flwr.app import ConfigRecord, Context, Error, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.supercore.constant import TaskType
from flwr.supercore.runtime import RuntimeHttpClient
from flwr.supercore.task_identity import TaskIdentity

from dpvalue.errors import DpvalueError
from dpvalue.flower.app import GridNodes, coordinator, refusing, simulation_app
from dpvalue.flower.deploy import Link, environment, supernode, write_app, write_authority, write_link, write_node_key
from dpvalue.flower.records import KIND, Memory, StoredTask, record_of, reply_of
from dpvalue.flower.runtime import Node, NodeTask
from dpvalue.flower.serve import serve
from dpvalue.flower.supervise import SupervisedProcess
from dpvalue.protocol.transport import FAILED, MALFORMED, Question, Reply, Respond, answer, wait_for_nodes
from tests.federation import LocalNodes
from tests.flower.flower_node import Supernode, wait_for
from tests.flower.flower_toys import ROW, party

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning:uvicorn", "ignore::DeprecationWarning:websockets"),
]

HELLO = Question(b"hello", b"")
REFUSED = Reply(b"", FAILED)


@pytest.fixture(autouse=True)
def _in_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in a ServerApp: flwr keeps in one place of a process which run a new message is of."""
    for name in ("_run_id", "_node_id", "_task_id"):
        monkeypatch.setattr(TaskIdentity, name, 7)


def free_port() -> int:
    with socket.socket() as listening:
        listening.bind(("127.0.0.1", 0))
        return int(listening.getsockname()[1])


def backwards(asked: Question) -> Reply:
    return Reply(asked.job[::-1], "")


@contextmanager
def serving(respond: Respond, node: Node, tick: float = 0.05) -> Iterator[threading.Thread]:
    over = threading.Event()
    thread = threading.Thread(target=serve, args=(respond, node), kwargs={"tick": tick, "stop": over.is_set})
    thread.start()
    try:
        yield thread
    finally:
        over.set()
        thread.join(30)
        assert not thread.is_alive()


def test_an_answer_is_a_release_or_a_refusal() -> None:
    for release, refused in ((b"", ""), (b"x", "no"), (b"", "a\nb"), (b"", "x" * 501)):
        with pytest.raises(ValueError):
            Reply(release, refused)
    wrong: list[Any] = [(bytearray(b"x"), ""), ("x", ""), (b"", b"no")]
    for pair in wrong:
        with pytest.raises(TypeError):
            Reply(*pair)


def test_nothing_of_an_exception_leaves(caplog: pytest.LogCaptureFixture) -> None:
    def raising(error: BaseException) -> Respond:
        def respond(asked: Question) -> Reply:
            raise error

        return respond

    with caplog.at_level(logging.INFO, "dpvalue"):
        for error in (ValueError(ROW), SystemExit(ROW), RecursionError(ROW), MemoryError(ROW)):
            assert answer(raising(error), HELLO) == REFUSED
        assert answer(lambda asked: ROW, HELLO) == REFUSED  # type: ignore[arg-type, return-value]
    assert ROW not in caplog.text
    with pytest.raises(KeyboardInterrupt):  # the party's own hand
        answer(raising(KeyboardInterrupt()), HELLO)


def test_replies_of_any_shape_are_read() -> None:
    asked = Message(record_of(HELLO), 1, KIND)

    def read(content: RecordDict) -> Reply | None:
        return reply_of(Message(content, reply_to=asked))

    for said in (Reply(b"\0\xff", ""), Reply(b"", "no")):
        assert read(record_of(said)) == said
    assert reply_of(Message(Error(5, ROW), reply_to=asked)) is None
    for fields in (
        {"release": b"", "refused": ""},
        {"release": b"x", "refused": "y"},
        {"release": "x", "refused": ""},
        {},
    ):
        assert read(RecordDict({"dpvalue": ConfigRecord(fields)})) == Reply(b"", MALFORMED)  # type: ignore[arg-type]
    assert read(RecordDict()) == Reply(b"", MALFORMED)
    assert read(RecordDict({"dpvalue": MetricRecord({"release": 1})})) == Reply(b"", MALFORMED)


class _Grid:
    """Node 1 answers at once, 2 in time, 3 has an error, 4 cannot be sent to, 5 never answers."""

    def __init__(self) -> None:
        self.sent: dict[str, Message] = {}
        self.pulls = 0

    def get_node_ids(self) -> list[int]:
        return [3, 1, 2]

    def push_messages(self, messages: list[Message]) -> list[str | None]:
        (message,) = messages
        node = message.metadata.dst_node_id
        self.sent[f"m{node}"] = message
        message.metadata.__dict__["_message_id"] = f"m{node}"
        return [None] if node == 4 else [f"m{node}"]

    def pull_messages(self, names: list[str]) -> list[Message]:
        self.pulls += 1
        found = []
        for name in names:
            if name == "m1" or (name == "m2" and self.pulls > 1):
                found.append(Message(record_of(Reply(name.encode(), "")), reply_to=self.sent[name]))
            if name == "m3":
                found.append(Message(Error(5, "gone"), reply_to=self.sent[name]))
        return found


def test_every_node_that_is_asked_comes_once() -> None:
    grid = _Grid()
    nodes = GridNodes(grid)  # type: ignore[arg-type]
    assert nodes.nodes() == [1, 2, 3]
    said = list(nodes.exchange(dict.fromkeys([1, 2, 3, 4, 5], HELLO), 1.5))
    assert said == [(4, None), (1, Reply(b"m1", "")), (3, None), (2, Reply(b"m2", "")), (5, None)]
    assert all(message.metadata.ttl == 1.5 for message in grid.sent.values())


def test_parties_in_one_process(tmp_path: Path) -> None:
    def late(asked: Question) -> Reply:
        time.sleep(0.3)
        return Reply(b"late", "")

    together = LocalNodes({1: party("a", tmp_path), 2: party("b", tmp_path)})
    assert together.nodes() == [1, 2]
    assert dict(together.exchange({1: HELLO, 2: Question(b"raise", b""), 3: HELLO}, 10.0)) == {
        1: Reply(b"olleha", ""),
        2: REFUSED,
        3: None,
    }
    assert dict(LocalNodes({1: late, 2: late}).exchange({1: HELLO, 2: HELLO}, 0.1)) == {1: None, 2: None}


def test_nodes_are_waited_for() -> None:
    class Coming:
        seen = 0

        def nodes(self) -> list[int]:
            self.seen += 1
            return list(range(self.seen))

        exchange = LocalNodes.exchange

    assert wait_for_nodes(Coming(), 3, 60.0) == [0, 1, 2]
    assert wait_for_nodes(LocalNodes({}), 3, 0.0) == []


def test_clients_of_flowers_own_simulation(tmp_path: Path) -> None:
    """Its engine, Ray, is not installed here: what it would call is called."""
    clients = simulation_app([party("a", tmp_path), party("b", tmp_path)])

    def call(client: ClientApp, asked: Question, node: int) -> Reply | None:
        context = Context(7, node, {"partition-id": node}, RecordDict(), {})
        return reply_of(client(Message(record_of(asked), node, KIND), context))

    assert call(clients, HELLO, 0) == Reply(b"olleha", "")
    assert call(clients, HELLO, 1) == Reply(b"ollehb", "")
    assert call(clients, Question(b"raise", b""), 1) == REFUSED
    assert call(refusing, HELLO, 1) == REFUSED  # who starts flwr-clientapp by mistake


def test_a_coordinator_is_found_by_name() -> None:
    found: Any = coordinator("os.path:join")
    assert found is os.path.join
    for name in ("", "os", ":join"):
        with pytest.raises(DpvalueError, match="coordinator must be"):
            coordinator(name)


def test_plain_calls_stay_on_this_machine() -> None:
    for address in ("10.0.0.1:9094", "example.org:9094", "localhost:9094", "0.0.0.0:9094"):
        with pytest.raises(DpvalueError, match="this machine"):
            Node(address)
        assert Node(address, certificates=b"").address == address
    for address in ("127.0.0.1", "127.0.0.1:x", ":9"):
        with pytest.raises(DpvalueError, match="HOST:PORT"):
            Node(address)
    assert "hush" not in repr(Node("127.0.0.1:1", secret=b"hush"))
    for tick in (0.0, -1.0, float("nan"), float("inf")):
        with pytest.raises(DpvalueError, match="tick"):
            serve(backwards, Node("127.0.0.1:1"), tick=tick, stop=lambda: True)


def test_a_supernode_is_served(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:1")  # nobody is there: whoever uses it fails
    port, secret = free_port(), b"s" * 32
    with Supernode(port, secret) as node, serving(backwards, Node(f"127.0.0.1:{port}", secret=secret)):
        for job in (b"one", b"two", bytes(3_000_000) + b"x"):
            node.put(record_of(Question(job, b"")))
            assert reply_of(node.reply()) == Reply(job[::-1], "")
        node.put(record_of(HELLO), late=1.0)
        assert reply_of(node.reply()) == Reply(b"olleh", "")
        # Whatever has no shape gets the fixed text, also what Flower would run as an agent.
        node.put(record_of(HELLO), kind="train")
        assert reply_of(node.reply()) == REFUSED
        node.put(RecordDict({"dpvalue": ConfigRecord({"job": b"x", "request": b"", "more": 1})}))
        assert reply_of(node.reply()) == REFUSED
        node.put(RecordDict(), task=TaskType.AGENT_APP)
        assert reply_of(node.reply()) == REFUSED
        wait_for(lambda: {task.status.status for task in node.state.get_tasks()} == {"finished"})
        assert {(task.status.sub_status, task.status.details) for task in node.state.get_tasks()} == {("completed", "")}


def test_who_does_not_know_the_secret_gets_no_task() -> None:
    port = free_port()
    with Supernode(port, b"s" * 32) as node:
        node.put(record_of(HELLO))
        with serving(backwards, Node(f"127.0.0.1:{port}")):
            time.sleep(1.0)
        assert not node.replies()


def test_a_supernode_is_known_by_its_certificate(tmp_path: Path) -> None:
    port = free_port()
    files, others = (write_authority(tmp_path / name, "127.0.0.1") for name in ("ours", "theirs"))
    with Supernode(port, files=files) as node:
        node.put(record_of(HELLO))
        with serving(backwards, Node(f"127.0.0.1:{port}", others.authority.read_bytes())):
            time.sleep(1.0)
        assert not node.replies()
        with serving(backwards, Node(f"127.0.0.1:{port}", files.authority.read_bytes())):
            assert reply_of(node.reply()) == Reply(b"olleh", "")


class _Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds


def test_answers_leave_at_ticks(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, left = _Clock(), []
    monkeypatch.setattr("dpvalue.flower.serve.time", clock)

    class NodeTask:
        def __init__(self, asked: Question | None) -> None:
            self._asked, self._taken = asked, clock.now

        heartbeat = staticmethod(nullcontext)
        forget = staticmethod(lambda: None)

        def question(self) -> Question | None:
            clock.sleep(0.125)  # the message takes its time, too
            return self._asked

        def reply(self, answered: Reply) -> None:
            left.append((clock.now - self._taken, answered))

    def respond(asked: Question) -> Reply:
        clock.sleep(float(asked.job))
        if float(asked.job) == 0.5:
            raise ValueError(ROW)
        return Reply(b"x", "")

    asked = [None, *(Question(job, b"") for job in (b"0", b"0.5", b"0.75", b"1.875", b"4"))]
    tasks = [NodeTask(question) for question in asked]

    class Runtime:
        def __init__(self, node: Node) -> None: ...

        def __enter__(self) -> Runtime:
            return self

        def __exit__(self, *exception: object) -> None: ...

        def take(self) -> NodeTask:
            task = tasks.pop(0)
            task._taken = clock.now
            return task

    monkeypatch.setattr("dpvalue.flower.serve.Runtime", Runtime)
    serve(respond, Node("127.0.0.1:1"), tick=1.0, stop=lambda: not tasks)
    answers = [REFUSED, Reply(b"x", ""), REFUSED, *[Reply(b"x", "")] * 3]
    assert left == list(zip([1.0, 1.0, 1.0, 1.0, 3.0, 5.0], answers, strict=True))


def test_a_lost_supernode_ends_nothing(caplog: pytest.LogCaptureFixture) -> None:
    port, asked, go = free_port(), threading.Event(), threading.Event()

    def respond(question: Question) -> Reply:
        asked.set()
        assert go.wait(20)
        return backwards(question)

    interrupted: list[int] = []
    before = signal.signal(signal.SIGINT, lambda number, frame: interrupted.append(number))
    try:
        with serving(respond, Node(f"127.0.0.1:{port}")) as thread:
            time.sleep(0.5)  # nobody there yet
            with Supernode(port) as node:
                node.put(record_of(HELLO))
                assert asked.wait(20)
            with Supernode(port) as node:  # a new one, which does not know the task: HTTP 401
                go.set()
                wait_for(lambda: "a task was lost" in caplog.text)
                node.put(record_of(HELLO))
                assert reply_of(node.reply()) == Reply(b"olleh", "")
            assert thread.is_alive()
    finally:
        signal.signal(signal.SIGINT, before)
    assert not interrupted
    assert "HTTPStatusError" in caplog.text


@pytest.mark.parametrize("call", ["PullTaskInput", "PushMessages", "PushTaskOutput"])
def test_a_lost_connection_loses_no_answer(call: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Neither one that is lost before the SuperNode heard of it, nor one whose answer is lost."""
    port, lost, called = free_port(), [True, True], []
    real = getattr(RuntimeHttpClient, call)

    def losing(self: RuntimeHttpClient, request: Any) -> Any:
        called.append(call)
        if not lost:
            return real(self, request)
        if len(lost) == 1:
            real(self, request)
        lost.pop()
        raise httpx.ReadError("lost")

    monkeypatch.setattr(RuntimeHttpClient, call, losing)
    with Supernode(port) as node, serving(backwards, Node(f"127.0.0.1:{port}")):
        node.put(record_of(HELLO))
        assert reply_of(node.reply()) == Reply(b"olleh", "")
        wait_for(lambda: len(called) == 3)
        wait_for(lambda: {task.status.status for task in node.state.get_tasks()} == {"finished"})
        node.put(record_of(HELLO))
        assert reply_of(node.reply()) == Reply(b"olleh", "")


class Killed(BaseException):
    """As by the kernel: nobody handles it."""


@pytest.mark.parametrize("moment", ["_begin", "_pull", "reply"])
def test_a_killed_agent_goes_on_with_its_task(moment: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port, calls = free_port(), []
    node = Node(f"127.0.0.1:{port}", memory=tmp_path / "task")

    def respond(asked: Question) -> Reply:
        calls.append(asked)
        return backwards(asked)

    def dying(step: Callable[..., Any], after: bool) -> Callable[..., None]:
        def die(*arguments: object) -> None:
            if after:
                step(*arguments)
            raise Killed

        return die

    with Supernode(port) as there:
        there.put(record_of(HELLO))
        for after in (False, True) if moment == "_begin" else (False,):  # before it tells the SuperNode, and after
            with monkeypatch.context() as patch:
                patch.setattr(NodeTask, moment, dying(getattr(NodeTask, moment), after))
                with pytest.raises(Killed):
                    serve(respond, node, tick=0.05, stop=lambda: False)
            assert stat.S_IMODE((tmp_path / "task").stat().st_mode) == 0o600
        with serving(respond, node):
            assert reply_of(there.reply()) == Reply(b"olleh", "")
            wait_for(lambda: not (tmp_path / "task").exists())
            there.put(record_of(Question(b"next", b"")))
            assert reply_of(there.reply()) == Reply(b"txen", "")
    assert set(calls) == {HELLO, Question(b"next", b"")}


def test_a_task_of_a_supernode_that_is_gone_is_not_gone_on_with(tmp_path: Path) -> None:
    port, calls = free_port(), []
    node = Node(f"127.0.0.1:{port}", memory=tmp_path / "task")

    def respond(asked: Question) -> Reply:
        calls.append(asked)
        if len(calls) == 1:
            raise Killed
        return backwards(asked)

    with Supernode(port) as there:
        there.put(record_of(HELLO))
        with pytest.raises(Killed):
            serve(respond, node, tick=0.05, stop=lambda: False)
    with Supernode(port) as there, serving(respond, node):
        there.put(record_of(Question(b"next", b"")))
        assert reply_of(there.reply()) == Reply(b"txen", "")
    assert calls == [HELLO, Question(b"next", b"")]


def test_an_agent_that_dies_of_a_task_again_and_again_refuses_it(tmp_path: Path) -> None:
    port, calls = free_port(), []
    node = Node(f"127.0.0.1:{port}", memory=tmp_path / "task")

    def respond(asked: Question) -> Reply:
        calls.append(asked)
        raise Killed

    with Supernode(port) as there:
        there.put(record_of(HELLO))
        for _ in range(3):
            with pytest.raises(Killed):
                serve(respond, node, tick=0.05, stop=lambda: False)
        with serving(respond, node):
            assert reply_of(there.reply()) == REFUSED
    assert len(calls) == 3


def test_what_is_remembered(tmp_path: Path) -> None:
    memory = Memory(tmp_path / "task")
    assert memory.recall() is None
    for taken in (StoredTask("t"), StoredTask("t", b"m", Question(b"\xff", b"")), StoredTask("t", b"m", None)):
        memory.keep(taken)
        assert memory.recall() == replace(taken, tries=2)
    for broken in ("", "[]", "{}", '{"token": "t", "message": "a", "asked": null, "tries": 1}'):
        (tmp_path / "task").write_text(broken)
        assert memory.recall() is None
        assert not (tmp_path / "task").exists()
    nothing = Memory(None)
    nothing.keep(StoredTask("t"))
    nothing.forget()
    assert nothing.recall() is None


def test_stock_flwr_would_interrupt_its_process() -> None:
    """Why its client is not used: should it stop to do so one day, this says it."""
    from flwr.supercore.retry import make_simple_http_retry_invoker

    def refuse() -> None:
        raise httpx.HTTPStatusError("", request=httpx.Request("GET", "http://x"), response=httpx.Response(401))

    with pytest.MonkeyPatch.context() as patch:
        killed: list[tuple[int, int]] = []
        patch.setattr(os, "kill", lambda *arguments: killed.append(arguments))
        patch.setattr("flwr.supercore.retry.http_retry.time.sleep", lambda seconds: None)
        with pytest.raises(httpx.HTTPStatusError):
            make_simple_http_retry_invoker().invoke(refuse)
    assert killed == [(os.getpid(), signal.SIGINT)]


def test_the_environment_of_flower(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in (
        "https_proxy",
        "HTTP_PROXY",
        "All_Proxy",
        "NO_PROXY",
        "FLWR_TELEMETRY_ENABLED",
        "FLWR_TRACING_ENABLED",
    ):
        monkeypatch.setenv(name, "1")
    found = environment(tmp_path)
    assert not [name for name in found if name.lower().endswith("_proxy")]
    assert found["FLWR_HOME"] == str(tmp_path)
    assert found["FLWR_TELEMETRY_ENABLED"] == "0"
    assert found["FLWR_DISABLE_UPDATE_CHECK"] == "1"
    assert "FLWR_TRACING_ENABLED" not in found
    code = "from flwr.supercore import telemetry, utils; print(telemetry.FLWR_TELEMETRY_ENABLED, utils.get_flwr_home())"
    said = subprocess.run([sys.executable, "-c", code], env=found, capture_output=True, text=True, check=True).stdout
    assert said.split() == ["0", str(tmp_path)]


def test_keys_and_certificates(tmp_path: Path) -> None:
    files = write_authority(tmp_path / "tls", "127.0.0.1")
    root = x509.load_pem_x509_certificate(files.authority.read_bytes())
    leaf = x509.load_pem_x509_certificate(files.certificate.read_bytes())
    leaf.verify_directly_issued_by(root)
    names = leaf.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert [str(name) for name in names.get_values_for_type(x509.IPAddress)] == ["127.0.0.1"]
    public = write_node_key(tmp_path / "node")
    key = load_ssh_private_key((tmp_path / "node").read_bytes(), None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    assert key.curve.name == "secp384r1"
    assert load_ssh_public_key(public.read_bytes()) == key.public_key()
    for secret in (files.key, tmp_path / "node"):
        assert stat.S_IMODE(secret.stat().st_mode) == 0o600
    with pytest.raises(DpvalueError, match="a key is never overwritten"):
        write_node_key(tmp_path / "node")


def test_an_app_holds_no_code(tmp_path: Path) -> None:
    import tomllib

    app = write_app(tmp_path / "app", {"coordinator": "a.b:c", "deadline": 2.5, "folder": '/a "b"\\c', "on": True})
    assert [path.name for path in app.iterdir()] == ["pyproject.toml"]
    config = tomllib.loads((app / "pyproject.toml").read_text())["tool"]["flwr"]["app"]
    assert config["config"] == {"coordinator": "a.b:c", "deadline": 2.5, "folder": '/a "b"\\c', "on": True}
    assert config["components"]["serverapp"] == "dpvalue.flower.app:app"
    write_link(tmp_path / "home", Link("127.0.0.1:9", tmp_path / "ca.crt"))
    link = tomllib.loads((tmp_path / "home" / "config.toml").read_text())["superlink"]
    assert link["study"] == {"address": "127.0.0.1:9", "root-certificates": str(tmp_path / "ca.crt")}
    command = supernode(Link("127.0.0.1:9", tmp_path / "ca.crt"), tmp_path / "node", 5, tmp_path / "secret")
    assert command[command.index("--isolation") + 1] == "process"
    assert "--insecure" not in command


def test_a_program_is_kept_running(tmp_path: Path) -> None:
    code = f"import os, time; open({str(tmp_path / 'starts')!r}, 'a').write(f'{{os.getpid()}}\\n'); time.sleep(600)"

    def starts() -> list[int]:
        path = tmp_path / "starts"
        return [int(line) for line in path.read_text().split()] if path.exists() else []

    with SupervisedProcess([sys.executable, "-c", code], dict(os.environ), tmp_path / "log") as kept:
        wait_for(lambda: len(starts()) == 1)
        assert kept.pid == starts()[0]
        os.kill(starts()[0], signal.SIGKILL)
        wait_for(lambda: len(starts()) == 2)
    assert kept.pid is None
    wait_for(lambda: not _runs(starts()[1]))


@pytest.mark.skipif(sys.platform != "linux", reason="needs prctl")
def test_a_program_ends_with_who_keeps_it(tmp_path: Path) -> None:
    code = """
import os, sys, time
from pathlib import Path
from dpvalue.flower.supervise import SupervisedProcess
command = [sys.executable, "-c", "import time; time.sleep(600)"]
SupervisedProcess(command, dict(os.environ), Path(sys.argv[1]) / "log").start()
kept = None
while True:
    time.sleep(0.1)
"""
    keeper = subprocess.Popen([sys.executable, "-c", code, str(tmp_path)])
    try:
        children = Path(f"/proc/{keeper.pid}/task")
        wait_for(lambda: any(_children(thread) for thread in children.iterdir()))
        (child,) = [int(pid) for thread in children.iterdir() for pid in _children(thread)]
        wait_for(lambda: b"supervise.py" not in Path(f"/proc/{child}/cmdline").read_bytes())
    finally:
        keeper.kill()
        keeper.wait(10)
    wait_for(lambda: not _runs(child))


def _children(thread: Path) -> list[str]:
    return (thread / "children").read_text().split()


def _runs(pid: int) -> bool:
    path = Path(f"/proc/{pid}/stat")
    return path.exists() and path.read_text().rsplit(")", 1)[1].split()[0] != "Z"


def test_of_flwr_only_what_speaks_it_needs_it() -> None:
    modules = ("dpvalue.flower.deploy", "dpvalue.flower.supervise", "dpvalue.protocol.transport")
    code = "import sys; sys.modules['flwr'] = None; import " + ", ".join(modules)
    subprocess.run([sys.executable, "-c", code], check=True)
