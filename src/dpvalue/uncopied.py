"""What exists once: an object that must not be copied, as its copy would draw noise for what has been answered."""

from __future__ import annotations

from typing import NoReturn, SupportsIndex

from dpvalue.errors import DpvalueError


class Uncopied:
    """A base of objects that `copy.copy`, `copy.deepcopy` and `pickle` refuse with one line."""

    def __reduce_ex__(self, protocol: SupportsIndex) -> NoReturn:
        """Raise: this is what copies and pickles are made by."""
        kind = type(self).__name__
        raise DpvalueError(f"a {kind} cannot be copied or pickled: the copy would draw noise again for what was drawn")
