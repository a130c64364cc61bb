"""The part of a SuperNode's Runtime API that an agent uses. This module has all uses of flwr's internals.

Flower's own `flwr-clientapp` installs and imports the app of the submitted run, sends exception texts, and interrupts
its own process if the SuperNode rejects its token (HTTP 401). This module uses none of that code: it ignores the app's
bundle, sends no exception texts, and does not use proxies of the environment.

flwr is pinned, because these interfaces are not public.
"""

from __future__ import annotations

import ssl
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from ipaddress import ip_address
from pathlib import Path
from typing import Any, Self

import httpx
from flwr.app import Message
from flwr.app.message import remove_content_from_message
from flwr.common.constant import SubStatus
from flwr.common.serde import message_from_proto, message_to_proto
from flwr.proto import runtime_pb2 as proto
from flwr.proto.message_pb2 import ConfirmMessageReceivedRequest, ObjectTree
from flwr.proto.message_pb2 import Message as ProtoMessage
from flwr.proto.node_pb2 import Node as ProtoNode
from flwr.supercore.constant import TaskType
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_tree,
    iterate_object_tree,
    no_object_id_recompute,
)
from flwr.supercore.inflatable.inflatable_protobuf_utils import (
    make_pull_object_fn_protobuf,
    make_push_object_fn_protobuf,
)
from flwr.supercore.inflatable.inflatable_utils import (
    ObjectPullError,
    inflate_object_from_contents,
    pull_objects,
    push_objects,
)
from flwr.supercore.interceptors import RuntimeTokenHttpInterceptor, SuperExecAuthHttpInterceptor
from flwr.supercore.retry import RetryInvoker, exponential
from flwr.supercore.runtime import RuntimeHttpClient

from dpvalue.errors import DpvalueError
from dpvalue.flower.records import Memory, StoredTask, question_of, record_of
from dpvalue.protocol.transport import Question, Reply

Unreachable = httpx.TransportError
"""The error of a connection without an answer; a refusal of the SuperNode is `httpx.HTTPStatusError`."""

_TAKES_TASK = "/flwr.proto.Runtime/AcquireTask"
_PASSING = frozenset({httpx.codes.BAD_GATEWAY, httpx.codes.SERVICE_UNAVAILABLE, httpx.codes.GATEWAY_TIMEOUT})
_TRIES = 6
_LIMIT = 30.0  # seconds of one call
_LONGEST = 600.0  # seconds to get a message, which the SuperNode may still be receiving
_WAIT, _WAITS = 0.25, 40  # seconds, and how often, a message is waited for
_HEARTBEAT = 10.0  # seconds; a SuperNode gives a task up after 60 without one


@dataclass(frozen=True)
class Node:
    """The connection to the party's own SuperNode.

    Attributes:
        address: host and port, as in `flower-supernode --host --port`.
        certificates: the root certificates (PEM) that authenticate the SuperNode; without them, calls are not encrypted
            and the address must be one of this machine.
        secret: the secret of `flower-supernode --superexec-auth-secret-file`; without it, anyone who can reach the
            address can take tasks.
        memory: a file for the task in progress, so that the agent resumes it after it was killed; without it, the task
            is lost and the SuperNode is blocked for a minute or until its restart.
    """

    address: str
    certificates: bytes | None = None
    secret: bytes | None = field(default=None, repr=False)
    memory: Path | None = None

    def __post_init__(self) -> None:
        host, _, port = self.address.rpartition(":")
        if not host or not port.isdecimal():
            raise DpvalueError(f"address must be HOST:PORT, got {self.address!r}")
        if self.certificates is None and not _is_of_this_machine(host.strip("[]")):
            raise DpvalueError(f"address must be one of this machine, unless certificates are given, got {host!r}")


def _is_of_this_machine(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


class _Client(RuntimeHttpClient):
    """Flower's HTTP client, which retries temporary failures and raises for others; it interrupts no process."""

    def __init__(self, node: Node, interceptors: list[Any]) -> None:
        verify: ssl.SSLContext | bool = True
        if node.certificates is not None:
            verify = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
            verify.load_verify_locations(cadata=node.certificates.decode("ascii"))
        scheme = "http" if node.certificates is None else "https"
        retry = RetryInvoker(
            lambda: exponential(0.25, max_delay=5),
            (httpx.TransportError, httpx.HTTPStatusError),
            max_tries=_TRIES,
            max_time=None,
            should_giveup=_cannot_pass,
        )
        super().__init__(f"{scheme}://{node.address}", interceptors=interceptors, retry_invoker=retry)
        self._client.close()
        self._client = httpx.Client(verify=verify, timeout=_LIMIT, follow_redirects=False, trust_env=False)


def _cannot_pass(error: Exception) -> bool:
    return isinstance(error, httpx.HTTPStatusError) and error.response.status_code not in _PASSING


class Runtime:
    """The SuperNode that offers tasks. A context manager."""

    def __init__(self, node: Node) -> None:
        self._node = node
        signing = [] if node.secret is None else [_signing(node.secret)]
        self._client = _Client(node, signing)
        self._memory = Memory(node.memory)
        self._unfinished = self._memory.recall()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        self._client.close()

    def take(self) -> NodeTask | None:
        """Take and return a waiting task; None if there is none. Raise if the SuperNode does not answer."""
        if self._unfinished is not None:
            unfinished, self._unfinished = self._unfinished, None
            return self._task(unfinished)
        # An "AgentApp" is taken and refused as malformed; otherwise it would block the SuperNode for ever.
        kinds = [TaskType.CLIENT_APP, TaskType.AGENT_APP]
        response = self._client.AcquireTask(proto.AcquireTaskRequest(supported_task_types=kinds))
        if not response.HasField("task") or not response.token:
            return None
        self._memory.keep(StoredTask(response.token))
        return self._task(StoredTask(response.token))

    def _task(self, response: StoredTask) -> NodeTask:
        return NodeTask(_Client(self._node, [RuntimeTokenHttpInterceptor(response.token)]), self._memory, response)


def _signing(secret: bytes) -> SuperExecAuthHttpInterceptor:
    return SuperExecAuthHttpInterceptor(master_secret=secret, protected_methods={_TAKES_TASK})


class NodeTask:
    """One message, which is answered once."""

    def __init__(self, client: _Client, memory: Memory, taken: StoredTask) -> None:
        self._client, self._memory, self._stored = client, memory, taken
        self._has_begun = taken.tries > 1
        self._reply: Message | None = None
        self._is_sent = False

    def question(self) -> Question | None:
        """Return the question; None if the message is malformed."""
        if self._stored.tries > 1:  # raises if the task has been given to another agent
            self._client.SendTaskHeartbeat(proto.SendTaskHeartbeatRequest())
        if not self._stored.message:
            self._begin()
            self._pull()
        return self._stored.question

    def _begin(self) -> None:
        """Tell the SuperNode that the task has begun; ignores the app's bundle that it returns."""
        try:
            self._client.PullTaskInput(proto.PullTaskInputRequest())
        except httpx.TransportError:
            self._has_begun = True  # possibly
            raise
        except httpx.HTTPStatusError:
            if not self._has_begun:  # else an earlier call has succeeded
                raise

    def _pull(self) -> None:
        """Get the message and store it before the SuperNode deletes it."""
        bare, tree = self._message()
        node, run = _address_of(bare)
        names = list(dict.fromkeys(part.object_id for part in iterate_object_tree(tree)))
        try:
            parts = pull_objects(
                names, make_pull_object_fn_protobuf(self._client.PullObject, node, run), max_time=_LIMIT
            )
        except ObjectPullError:  # parts of it never came
            parts = {}
        question = _question_from_parts(tree.object_id, parts)
        self._stored = replace(self._stored, message=bare.SerializeToString(), question=question)
        self._memory.keep(self._stored)
        self._client.ConfirmMessageReceived(
            ConfirmMessageReceivedRequest(node=node, run_id=run, message_object_id=tree.object_id)
        )

    def _message(self) -> tuple[ProtoMessage, ObjectTree]:
        """The message without its parts, and their names; waits, as a task may exist before its message."""
        for _ in range(_WAITS):
            pulled = self._client.PullMessages(proto.PullAppMessagesRequest())
            if pulled.messages_list:
                return pulled.messages_list[0], pulled.message_object_trees[0]
            time.sleep(_WAIT)
        raise LookupError("the task has no message")

    def reply(self, answer: Reply) -> None:
        """Send the reply; a second call, after a lost connection, sends the same message."""
        question = ProtoMessage.FromString(self._stored.message)
        if self._reply is None:
            self._reply = Message(record_of(answer), reply_to=message_from_proto(question))
            self._reply.metadata.__dict__["_message_id"] = self._reply.object_id
        if not self._is_sent:
            self._push(self._reply, *_address_of(question))
            self._is_sent = True
        with suppress(httpx.HTTPStatusError):  # an earlier call has succeeded
            self._client.PushTaskOutput(proto.PushTaskOutputRequest(sub_status=SubStatus.COMPLETED, details=""))

    def _push(self, reply: Message, node: ProtoNode, run: int) -> None:
        """Send a message and its parts."""
        with no_object_id_recompute():
            bare, tree = message_to_proto(remove_content_from_message(reply)), get_object_tree(reply)
            request = proto.PushAppMessagesRequest(messages_list=[bare], message_object_trees=[tree])
            pushed = self._client.PushMessages(request)
            push = make_push_object_fn_protobuf(self._client.PushObject, node, run, pushed.session_id)
            push_objects(get_all_nested_objects(reply), push, object_ids_to_push=set(pushed.objects_to_push))

    def forget(self) -> None:
        """Delete the stored task, so that it is not resumed after a restart."""
        self._memory.forget()

    @contextmanager
    def heartbeat(self) -> Iterator[None]:
        """Send heartbeats, so that the SuperNode does not give up the task; close the connection at the end."""
        stopped = threading.Event()
        thread = threading.Thread(target=self._beat, args=(stopped,), daemon=True)
        thread.start()
        try:
            yield
        finally:
            stopped.set()
            thread.join(_LIMIT)
            self._client.close()

    def _beat(self, stopped: threading.Event) -> None:
        """Send a heartbeat at regular intervals."""
        while not stopped.wait(_HEARTBEAT):
            try:
                self._client.SendTaskHeartbeat(proto.SendTaskHeartbeatRequest())
            except Exception:  # the reply will show whether the task is still ours
                continue


def _address_of(message: ProtoMessage) -> tuple[ProtoNode, int]:
    """The node and the run of a message."""
    return ProtoNode(node_id=message.metadata.dst_node_id), message.metadata.run_id


def _question_from_parts(name: str, parts: dict[str, bytes]) -> Question | None:
    """The question of a message, from its parts; None if it is malformed."""
    try:
        message = inflate_object_from_contents(name, parts)
        return question_of(message) if isinstance(message, Message) else None
    except Exception:  # untrusted content may raise anything
        return None
