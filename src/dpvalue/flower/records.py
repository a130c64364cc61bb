"""What is asked and answered as Flower's records: one `ConfigRecord` with two fields of fixed names and types.

What does not look exactly so is nothing: `None`, never an exception. No other kind of record is looked into.
"""

from __future__ import annotations

import logging
from typing import Any

from flwr.app import ConfigRecord, Message, RecordDict

from dpvalue.protocol.transport import MALFORMED, Answered, Asked

KIND = "query.release"
_RECORD = "dpvalue"
_log = logging.getLogger("dpvalue")


def record_of(value: Asked | Answered) -> RecordDict:
    """Return the content of a message."""
    return RecordDict({_RECORD: ConfigRecord(dict(vars(value)))})


def asked_of(message: Message) -> Asked | None:
    """Return what a message asks; None where it has not the shape of a question."""
    if message.metadata.message_type != KIND:
        return None
    fields = _fields(message, {"job": bytes, "request": bytes})
    return None if fields is None else Asked(**fields)


def answered_of(message: Message) -> Answered | None:
    """Return what a reply says: None for an error of Flower's own, `MALFORMED` if it is not shaped like an answer."""
    if message.has_error():
        return None
    try:
        fields = _fields(message, {"release": bytes, "refused": str})
        return Answered(b"", MALFORMED) if fields is None else Answered(**fields)
    except Exception as error:  # whatever Flower or we raise for what a stranger has sent
        _log.warning("an answer cannot be read: %s", type(error).__name__)
        return Answered(b"", MALFORMED)


def _fields(message: Message, types: dict[str, type]) -> dict[str, Any] | None:
    """The fields of the one record, if they have these names and types."""
    if not message.has_content() or list(message.content) != [_RECORD]:
        return None
    record = message.content[_RECORD]
    if type(record) is not ConfigRecord or {name: type(record[name]) for name in record} != types:
        return None
    return dict(record)
