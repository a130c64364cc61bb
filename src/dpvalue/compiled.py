"""The choice between compiled inner loops (numba, the extra `dpvalue[fast]`) and torch.

Both give the same results up to rounding. Compilation takes about ten seconds the first time on a machine, and loading
compiled code half a second, so small computations use torch. The environment variable DPVALUE_COMPILED overrides the
choice: 0 for torch, 1 for compiled code at any size.
"""

from __future__ import annotations

import os
from functools import lru_cache

_LEAST_POSITIONS = 20_000  # one after the other: one to two seconds of torch's time
_LEAST_NUMBERS = 2 * 10**8  # the same, of noise


def compiled_pays(positions: int, numbers: int) -> bool:
    """Return whether a computation should use compiled code.

    Args:
        positions: the number of sequential positions of its walks.
        numbers: the total number of released numbers.
    """
    choice = os.environ.get("DPVALUE_COMPILED", "")
    large = positions >= _LEAST_POSITIONS or numbers >= _LEAST_NUMBERS
    return choice != "0" and (large or choice == "1") and _loads()


@lru_cache(maxsize=1)
def _loads() -> bool:
    """Whether numba is installed and has a cache folder."""
    try:
        from numba import njit

        njit(cache=True)(compiled_pays)  # compiles nothing yet, but fails where no folder can be written to
    except (ImportError, RuntimeError):
        return False
    return True
