"""Supervision of Flower's programs: they run as long as this process runs.

As a script (`python supervise.py PARENT COMMAND...`), which imports nothing of dpvalue, it runs a command that ends
with its parent process, even if that is killed. On systems other than Linux it only runs the command.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

_log = logging.getLogger("dpvalue")

_PR_SET_PDEATHSIG = 1
_GRACE = 8.0  # seconds to end by itself: Flower says goodbye to its peers
_LONGEST = 10.0  # seconds between two starts


class SupervisedProcess:
    """A program that is restarted when it ends. A context manager: on exit, the program is ended.

    flwr interrupts its own process if it is not authenticated (HTTP 401, as after a SuperLink's restart on an empty
    database), and exits if its first connection fails. So it needs restarts.

    Args:
        command: the command, with the program as a path.
        environment: its environment (`deploy.environment`).
        log: the file to which its output is appended.
        restart: whether it is restarted; False: it runs once.
    """

    def __init__(self, command: Sequence[str], environment: Mapping[str, str], log: Path, restart: bool = True) -> None:
        self._command = [sys.executable, "-I", __file__, str(os.getpid()), *command]
        self._environment, self._log, self._restart = dict(environment), log, restart
        self._stopped = threading.Event()
        self._lock = threading.Lock()
        self._process: subprocess.Popen[bytes] | None = None
        # The program ends with the thread that starts it, so that thread lives as long as this object.
        self._thread = threading.Thread(target=self._keep, name=Path(command[0]).name, daemon=True)

    @property
    def pid(self) -> int | None:
        """The id of the running process; None if none runs."""
        process = self._process
        return process.pid if process is not None and process.poll() is None else None

    def start(self) -> Self:
        """Start the program."""
        self._thread.start()
        return self

    def stop(self) -> None:
        """Terminate the program; kill it if it does not end in time."""
        self._stopped.set()
        with self._lock:
            process = self._process
        if process is not None:
            process.terminate()
            try:
                process.wait(_GRACE)
            except subprocess.TimeoutExpired:
                process.kill()
        if self._thread.ident is not None:
            self._thread.join(_GRACE)

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *exception: object) -> None:
        self.stop()

    def _keep(self) -> None:
        """Start the program and restart it when it ends, with growing pauses if it ends at once."""
        pause = 0.5
        while not self._stopped.is_set():
            start = time.monotonic()
            with self._log.open("ab") as log, self._lock:
                if self._stopped.is_set():
                    return
                self._process = subprocess.Popen(
                    self._command, env=self._environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
                )
            code = self._process.wait()
            if self._stopped.is_set() or not self._restart:
                return
            pause = 0.5 if time.monotonic() - start > _LONGEST else min(2 * pause, _LONGEST)
            _log.warning("%s ended (%d); starting it again", self._thread.name, code)
            self._stopped.wait(pause)


def main(parent: int, command: list[str]) -> None:
    """Replace this process by a command that ends with the process `parent`."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
        if os.getppid() != parent:  # it ended before it could be watched
            return
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
