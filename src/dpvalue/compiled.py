"""Whether a job's inner loops run in compiled code (numba, the extra `dpvalue[fast]`) or by torch: one answer for all.

Both give the same results but for rounding. Compiling takes some ten seconds the first time on a machine, and loading
what was compiled half a second, so small jobs are left to torch. The environment variable DPVALUE_COMPILED says
otherwise: 0 for never, 1 for jobs of any size.
"""

from __future__ import annotations

import os
from functools import lru_cache

_LEAST_POSITIONS = 20_000  # one after the other: one to two seconds of torch's time
_LEAST_NUMBERS = 2 * 10**8  # the same, of noise


def compiled_pays(positions: int, numbers: int) -> bool:
    """Return whether a job is for compiled code.

    Args:
        positions: of walks that advance together, one position after the other.
        numbers: that are released in all.
    """
    choice = os.environ.get("DPVALUE_COMPILED", "")
    large = positions >= _LEAST_POSITIONS or numbers >= _LEAST_NUMBERS
    return choice != "0" and (large or choice == "1") and _loads()


@lru_cache(maxsize=1)
def _loads() -> bool:
    """Whether numba is there, and has a place to keep what it compiles."""
    try:
        from numba import njit

        njit(cache=True)(compiled_pays)  # compiles nothing yet, but fails where no folder can be written to
    except (ImportError, RuntimeError):
        return False
    return True
