"""Clipping rules: each bounds the length of every vector, and says the same of lengths alone.

Scaling to a norm of exactly C could exceed C by rounding. A little room keeps a clipped vector, and any mean of clipped
vectors that is added up in float64, below. A rule is named by a string in arguments; `register_rule` adds one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.errors import DpvalueError, require_choice

_ROOM = {torch.float32: 2.0**-20, torch.float64: 2.0**-40}


@dataclass(frozen=True)
class ClippingRule:
    """How vectors become at most as long as a norm.

    Formal guarantee: what is promised of releases rests on `clip`, for float32 and float64 vectors: the norm of each
    result, in exact arithmetic, is at most the given one. On a grid, `Grid.round` checks that once more.

    Attributes:
        name: as in `clip_rule=`.
        clip: returns vectors (..., d) scaled to a norm; one with a non-finite entry becomes zero.
        divisor: what a vector is divided by, from its length over the norm: the rule on lengths, without rounding.
        equal_lengths: whether all but zero become as long as the norm, so that the norm is a matter of units.
        automatic: whether clip_rule "auto" may choose it.
    """

    name: str
    clip: Callable[[Tensor, float], Tensor]
    divisor: Callable[[Floats], Floats]
    equal_lengths: bool = False
    automatic: bool = False


def clip_rows(vectors: Tensor, norm: float) -> Tensor:
    """Scale every vector (last dimension) to l2 norm at most `norm`; one with a non-finite entry becomes zero.

    Formal guarantee: the norm of each result, in exact arithmetic, is at most `norm`, for float32 and float64 input.
    """
    length = torch.linalg.vector_norm(vectors, dim=-1, keepdim=True, dtype=torch.float64)
    return divide_clipped(torch.empty_like(vectors).copy_(vectors), length.div_(clip_bound(norm, vectors.dtype)))


def normalise_rows(vectors: Tensor, norm: float) -> Tensor:
    """Scale every vector (last dimension) to l2 norm `norm`; zero, and one with a non-finite entry, become zero.

    Formal guarantee: the norm of each result, in exact arithmetic, is at most `norm`, for float32 and float64 input.
    """
    doubles = vectors.to(torch.float64)
    doubles = doubles / doubles.abs().amax(
        -1, keepdim=True
    )  # or the squares of tiny entries would vanish, and the length too
    length = torch.linalg.vector_norm(doubles, dim=-1, keepdim=True)
    scaled: Tensor = (doubles / length * clip_bound(norm, vectors.dtype)).to(vectors.dtype)
    return scaled.nan_to_num_(0.0, 0.0, 0.0)


def clip_bound(norm: float, dtype: torch.dtype) -> float:
    """Return the length to scale longer vectors to, so that none is longer than `norm` after rounding to `dtype`."""
    return norm * (1 - _ROOM[dtype])


def divide_clipped(vectors: Tensor, excess: Tensor) -> Tensor:
    """Divide vectors, in place, by `excess`, their length over `clip_bound` in float64, where that exceeds 1.

    The division is in float64 and rounds once. An infinite excess makes zero; every NaN, from a vector or from infinity
    over infinity, becomes zero.
    """
    return vectors.div_(excess.clamp_min_(1.0)).nan_to_num_(0.0, 0.0, 0.0)


FLAT = ClippingRule("flat", clip_rows, lambda excess: np.maximum(excess, 1.0), automatic=True)
"""Scales what is longer than the norm down to it, and leaves the rest."""
NORMALISE = ClippingRule("normalise", normalise_rows, lambda excess: excess, equal_lengths=True, automatic=True)
"""Scales everything to the norm but zero."""

RULES = {rule.name: rule for rule in (FLAT, NORMALISE)}
"""By name; `register_rule` adds to them."""


def register_rule(rule: ClippingRule) -> None:
    """Make a clipping rule known by its name, to `clip_rule=`."""
    if rule.name in ("auto", *RULES):
        raise DpvalueError(f"the name of a clipping rule must be new, got {rule.name!r}")
    RULES[rule.name] = rule


def find_rule(name: str) -> ClippingRule:
    """Return the clipping rule of a name."""
    require_choice("clip_rule", name, RULES)
    return RULES[name]
