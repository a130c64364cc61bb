"""Questions and replies as Flower's records, and the file of an agent's unfinished task.

A record is one `ConfigRecord` with two fields of fixed names and types. Any other content is parsed as `None`, without
an exception. Other kinds of records are not read.

A SuperNode offers a task once. After an agent has ended, it waits for a minute before it offers another task, and for
ever if the agent was killed before it had pulled the message. So the agent stores its task and resumes it.
"""

from __future__ import annotations

import base64
import json
import logging
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from dpvalue.protocol.transport import MALFORMED, Question, Reply
from dpvalue.storage import OWNER_ALONE, write_whole
from dpvalue.stored import parse_json, read_text

KIND = "query.release"
_RECORD = "dpvalue"
_log = logging.getLogger("dpvalue")


def record_of(value: Question | Reply) -> RecordDict:
    """Return the content of a message."""
    return RecordDict({_RECORD: ConfigRecord(dict(vars(value)))})


def question_of(message: Message) -> Question | None:
    """Return the question of a message; None if it is malformed."""
    if message.metadata.message_type != KIND:
        return None
    fields = _fields(message, {"job": bytes, "request": bytes})
    return None if fields is None else Question(**fields)


def reply_of(message: Message) -> Reply | None:
    """Return the reply of a message: None for an error of Flower's, the refusal `MALFORMED` if it is malformed."""
    if message.has_error():
        return None
    try:
        fields = _fields(message, {"release": bytes, "refused": str})
        return Reply(b"", MALFORMED) if fields is None else Reply(**fields)
    except Exception as error:  # untrusted content may raise anything
        _log.warning("an answer cannot be read: %s", type(error).__name__)
        return Reply(b"", MALFORMED)


def _fields(message: Message, types: dict[str, type]) -> dict[str, Any] | None:
    """The fields of the one record, if they have these names and types."""
    if not message.has_content() or list(message.content) != [_RECORD]:
        return None
    record = message.content[_RECORD]
    if type(record) is not ConfigRecord or {name: type(record[name]) for name in record} != types:
        return None
    return dict(record)


_TRIES = 3


@dataclass(frozen=True)
class StoredTask:
    """A task.

    Attributes:
        token: authenticates the agent of the task to the SuperNode.
        message: the message without its content, as protobuf; empty until it is pulled.
        question: the question; None if it is malformed.
        tries: the number of times that an agent has begun it. After several crashes it is not tried again.
    """

    token: str
    message: bytes = b""
    question: Question | None = None
    tries: int = 1


class Memory:
    """A file with the task in progress, if there is one; without a path nothing is stored."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def keep(self, task: StoredTask) -> None:
        """Store a task."""
        if self._path is None:
            return
        question = None if task.question is None else [_text(task.question.job), _text(task.question.request)]
        content = {"token": task.token, "message": _text(task.message), "asked": question, "tries": task.tries}
        write_whole(self._path, json.dumps(content).encode(), OWNER_ALONE)

    def recall(self) -> StoredTask | None:
        """Return the unfinished task of an earlier agent, with one more try; None if there is none.

        After several tries its question is None, so that the party's reply is the fixed refusal.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            content = parse_json(read_text(self._path), str(self._path))
            question = None if content["asked"] is None else Question(*map(base64.b64decode, content["asked"]))
            message = base64.b64decode(content["message"])
            task = StoredTask(str(content["token"]), message, question, int(content["tries"]) + 1)
        except (ValueError, KeyError, TypeError, OverflowError):  # it has been damaged
            self.forget()
            return None
        task = replace(task, question=None) if task.tries > _TRIES else task
        self.keep(task)
        return task

    def forget(self) -> None:
        """Delete the stored task, which is done or lost."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
