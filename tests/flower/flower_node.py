"""A SuperNode's Runtime API in this process, without a SuperLink: messages are put in and replies taken out by hand."""

from __future__ import annotations

import threading
import time
from types import TracebackType
from typing import Any, Self

import uvicorn
from flwr.app import Context, Message, RecordDict
from flwr.app.message.message import make_message
from flwr.app.metadata import Metadata
from flwr.supercore.constant import TaskType
from flwr.supercore.fab import Fab
from flwr.supercore.inflatable.inflatable_utils import inflate_object_from_contents
from flwr.supercore.object_store import ObjectStoreFactory
from flwr.supercore.run import Run
from flwr.supernode.main import create_app
from flwr.supernode.nodestate import NodeStateFactory
from flwr.supernode.start_client_internal import _insert_message

from dpvalue.flower.deploy import Certificates
from dpvalue.flower.records import KIND

_RUN = 7


class Supernode:
    """Serves on a port of this machine until it is left; `with Supernode(port)` again is its restart."""

    def __init__(self, port: int, secret: bytes | None = None, files: Certificates | None = None) -> None:
        self._factory = NodeStateFactory(objectstore_factory=ObjectStoreFactory())
        self.state: Any = self._factory.state()
        self.state.set_node_id(1)
        self.bundle = b"not a bundle: whoever unpacks it fails"
        app = create_app(state_factory=self._factory, superexec_auth_secret=secret)
        tls: Any = {} if files is None else {"ssl_certfile": files.certificate, "ssl_keyfile": files.key}
        config = uvicorn.Config(app, host="127.0.0.1", port=port, log_level="error", lifespan="off", **tls)
        self._server = uvicorn.Server(config)
        self._thread = threading.Thread(target=self._server.run, daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        wait_for(lambda: self._server.started)
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        self._server.should_exit = True
        self._thread.join(10)
        assert not self._thread.is_alive()

    def put(self, content: RecordDict, kind: str = KIND, task: str = TaskType.CLIENT_APP, late: float = 0.0) -> None:
        """As if the message came from the SuperLink: the task first, and so many seconds later the message."""
        if self.state.get_run(_RUN) is None:
            fab = Fab("", self.bundle, {})
            run = Run.create_empty(_RUN)
            run.fab_hash = self.state.store_fab(fab)
            self.state.store_run(run)
            self.state.set_run_series_context(run.series_id, Context(_RUN, 1, {}, RecordDict(), {}))
        stamp = Metadata(_RUN, "", 0, 1, "", "", time.time(), 600.0, kind)
        message = make_message(metadata=stamp, content=content)
        assert self.state.create_task(task_type=task, run_id=_RUN, fab_hash=self.state.get_run(_RUN).fab_hash)
        time.sleep(late)
        _insert_message(message, self.state, self.state.object_store)

    def replies(self) -> list[Message]:
        """The replies that came since it was asked last, with all their parts."""
        return [self._whole(bare.metadata.message_id) for bare in self.state.get_messages_legacy(is_reply=True)]

    def _whole(self, name: str) -> Message:
        store = self.state.object_store
        names = [name, *self._below(store.get_object_tree(name))]
        wait_for(lambda: all(store.get(part) for part in names))
        message: Any = inflate_object_from_contents(name, {part: store.get(part) for part in names})
        assert isinstance(message, Message)
        return message

    def _below(self, tree: Any) -> list[str]:
        return [name for child in tree.children for name in (child.object_id, *self._below(child))]

    def reply(self) -> Message:
        """The next reply, within some seconds."""
        found: list[Message] = []

        def there() -> bool:
            found.extend(self.replies())
            return bool(found)

        wait_for(there)
        (reply,) = found
        return reply


def wait_for(done: Any, seconds: float = 20.0) -> None:
    """Wait until something holds; fail if it does not."""
    end = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)
