"""Damage to bytes, for tests of what reads them: cut, flipped, replaced, repeated; the same for the same seed."""

from __future__ import annotations

import random
from collections.abc import Iterator

_WORDS = (
    b"\x00", b"\xff", b"\xed\xa0\x80", b"\xef\xbb\xbf", b"\x7f" * 8, b"{", b"}", b"[", b'"', b"\n", b"null", b"true",
    b"-1", b"1e999", b"NaN", b"9" * 400, b"\\ud800", b"[" * 3000,
)  # fmt: skip


def damaged(content: bytes, count: int, seed: int) -> Iterator[bytes]:
    """Yield so many damaged copies."""
    chance = random.Random(seed)
    for number in range(count):
        made = bytearray(content)
        for _ in range(chance.choice((1, 1, 2, 5))):
            _damage(made, number % 7, chance)
        yield bytes(made)


def _damage(made: bytearray, how: int, chance: random.Random) -> None:
    # The start of a file says how the rest is read: half of the damage is done there.
    size = max(1, len(made))
    place = chance.randrange(min(size, 64) if chance.random() < 0.5 else size)
    length = chance.choice((1, 2, 8, 64, size))
    if how == 0:
        del made[place:]
    elif how == 1 and made:
        made[place] ^= 1 << chance.randrange(8)
    elif how == 2:
        made[place : place + length] = chance.randbytes(min(length, 64))
    elif how == 3:
        made[place:place] = chance.choice(_WORDS)
    elif how == 4:
        made[place : place + length] = chance.choice(_WORDS)
    elif how == 5:
        made[place:place] = made[place : place + length]
    else:
        del made[place : place + length]
