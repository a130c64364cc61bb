"""What the runners of other libraries share: a saved problem, a clock that stops them, and what they report.

A runner is started by a Python that has its library, apart from this package:

    python by_LIBRARY.py problem.npz PERMUTATIONS SECONDS

and prints one line of JSON. A library that is stopped by the clock reports the values of what it had done until then.
"""

from __future__ import annotations

import json
import math
import signal
import sys
import time
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

GUESS = -math.log(2.0)  # what a model is worth that was fitted to no row, or to rows of one class


class Stopped(BaseException):
    """Time is up; no `Exception`, as libraries catch those of a fit."""


class Counted(LogisticRegression):
    """scikit-learn's logistic regression with its defaults, which counts how often any was fitted."""

    fits = 0

    def fit(self, X: Any, y: Any, sample_weight: Any = None) -> Counted:
        """Fit, and count."""
        Counted.fits += 1
        super().fit(X, y, sample_weight)
        return self


class Problem:
    """Rows to be valued, held-out rows, and how much may be done."""

    def __init__(self, arguments: list[str]) -> None:
        file = np.load(arguments[0])
        self.x, self.y, self.x_test, self.y_test = (file[name] for name in ("x", "y", "x_test", "y_test"))
        self.n = len(self.x)
        self.permutations, self.seconds = int(arguments[1]), float(arguments[2])

    def worth(self, coalition: Any) -> float:
        """Return minus the log-loss on the held-out rows of a model fitted to the rows of a mask."""
        labels = self.y[coalition]
        if len(labels) == 0 or labels.min() == labels.max():
            return GUESS
        model = Counted().fit(self.x[coalition], labels)
        chances = model.predict_proba(self.x_test)[np.arange(len(self.y_test)), self.y_test]
        return float(np.log(np.clip(chances, 1e-15, 1.0)).mean())


def peak_mb() -> float:
    """Return the most memory that this process ever held, by the system's count.

    Not ru_maxrss, which starts from what the process that started this one held.
    """
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith("VmHWM"))
    return int(line.split()[1]) * 1024 / 1e6


def report(
    problem: Problem,
    work: Callable[[], Any],
    values: Callable[[], Any],
    walked: Callable[[], float],
    more: Callable[[], dict[str, Any]] = dict,
) -> None:
    """Do the work until it is done or time is up, and print what was found by then.

    Args:
        problem: what is valued.
        work: the library's estimate.
        values: the values so far, one for each row; None if there are none.
        walked: how many whole permutations they are of.
        more: what else is to be reported.
    """

    def stop(*_: Any) -> None:
        raise Stopped

    warnings.simplefilter("ignore")
    signal.signal(signal.SIGALRM, stop)
    signal.setitimer(signal.ITIMER_REAL, problem.seconds)
    began, used = time.perf_counter(), time.process_time()
    finished, failed = True, ""
    try:
        work()
    except Stopped:
        finished = False
    except Exception as error:
        finished, failed = False, f"{type(error).__name__}: {error}"
    signal.setitimer(signal.ITIMER_REAL, 0)
    found = {
        "finished": finished,
        "failed": failed,
        "seconds": time.perf_counter() - began,
        "processor_seconds": time.process_time() - used,
        "peak_mb": peak_mb(),
        "fits": Counted.fits,
        "permutations": walked(),
        **more(),
    }
    so_far = values()
    found["values"] = None if so_far is None else np.asarray(so_far, dtype=float).tolist()
    sys.stdout.write("\n" + json.dumps(found) + "\n")
