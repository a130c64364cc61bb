"""What an agent that is killed must find again when it is started anew: the task that it had taken.

A SuperNode hands a task out once. Without this file it waits a minute for an agent that is gone, and for ever if that
was killed before it had pulled the message; nobody else gets anything from it meanwhile.
"""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass, replace
from pathlib import Path

from dpvalue.protocol.transport import Asked
from dpvalue.storage import OWNER_ALONE, write_whole
from dpvalue.stored import parse_json, read_text

_TRIES = 3


@dataclass(frozen=True)
class Taken:
    """A task.

    Attributes:
        token: by which the SuperNode knows who has it.
        message: the message without its content, as protobuf; empty until it is pulled.
        asked: what it asks; None if it has no shape.
        tries: how often an agent has begun with it. Whoever dies of it again and again must stop to try.
    """

    token: str
    message: bytes = b""
    asked: Asked | None = None
    tries: int = 1


class Memory:
    """A file with the task that is being answered, if there is one; without a path nothing is kept."""

    def __init__(self, path: Path | None) -> None:
        self._path = path

    def keep(self, taken: Taken) -> None:
        """Write a task down."""
        if self._path is None:
            return
        asked = None if taken.asked is None else [_text(taken.asked.job), _text(taken.asked.request)]
        content = {"token": taken.token, "message": _text(taken.message), "asked": asked, "tries": taken.tries}
        write_whole(self._path, json.dumps(content).encode(), OWNER_ALONE)

    def recall(self) -> Taken | None:
        """Return the task that an agent before this one did not finish, with this try counted; None if there is none.

        After some tries nothing is asked any more, so that the party's answer is the fixed text.
        """
        if self._path is None or not self._path.exists():
            return None
        try:
            content = parse_json(read_text(self._path), str(self._path))
            asked = None if content["asked"] is None else Asked(*map(base64.b64decode, content["asked"]))
            message = base64.b64decode(content["message"])
            taken = Taken(str(content["token"]), message, asked, int(content["tries"]) + 1)
        except (ValueError, KeyError, TypeError, OverflowError):  # it has been damaged
            self.forget()
            return None
        taken = replace(taken, asked=None) if taken.tries > _TRIES else taken
        self.keep(taken)
        return taken

    def forget(self) -> None:
        """Keep nothing: the task is done, or lost."""
        if self._path is not None:
            self._path.unlink(missing_ok=True)


def _text(content: bytes) -> str:
    return base64.b64encode(content).decode("ascii")
