"""Questions and answers as Flower's records, and in a file: the task that an agent has taken and not finished.

A record is one `ConfigRecord` with two fields of fixed names and types. What does not look exactly so is nothing:
`None`, never an exception. No other kind of record is looked into.

A SuperNode hands a task out once. Without the file it waits a minute for an agent that is gone, and for ever if that
was killed before it had pulled the message; nobody else gets anything from it meanwhile.
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
    """Return what a message asks; None where it has not the shape of a question."""
    if message.metadata.message_type != KIND:
        return None
    fields = _fields(message, {"job": bytes, "request": bytes})
    return None if fields is None else Question(**fields)


def reply_of(message: Message) -> Reply | None:
    """Return what a reply says: None for an error of Flower's own, `MALFORMED` if it is not shaped like an answer."""
    if message.has_error():
        return None
    try:
        fields = _fields(message, {"release": bytes, "refused": str})
        return Reply(b"", MALFORMED) if fields is None else Reply(**fields)
    except Exception as error:  # whatever Flower or we raise for what a stranger has sent
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
        token: by which the SuperNode knows who has it.
        message: the message without its content, as protobuf; empty until it is pulled.
        asked: what it asks; None if it has no shape.
        tries: how often an agent has begun with it. Whoever dies of it again and again must stop to try.
    """

    token: str
    message: bytes = b""
    question: Question | None = None
    tries: int = 1


class Memory:
    """A file with the task that is being answered, if there is one; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def keep(self, task: StoredTask) -> None:
        """Write a task down."""
        if self._path is None:
            return
        question = None if task.question is None else [_text(task.question.job), _text(task.question.request)]
        content = {"token": task.token, "message": _text(task.message), "asked": question, "tries": task.tries}
        write_whole(self._path, json.dumps(content).encode(), OWNER_ALONE)

    def recall(self) -> StoredTask | None:
        """Return the task that an agent before this one did not finish, with this try counted; None if there is none.

        After some tries nothing is asked any more, so that the party's answer is the fixed text.
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
        """Keep nothing: the task is done, or lost."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
