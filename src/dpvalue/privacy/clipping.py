"""Clipping rules: each bounds the l2 norm of vectors, and gives the same rule for norms alone.

Scaling to a norm of exactly C could exceed C by rounding. So vectors are scaled to slightly less than C, which keeps a
clipped vector, and a mean of clipped vectors summed in float64, within C. `register_rule` adds a rule by name.
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
    """A rule that bounds the l2 norm of vectors.

    Formal guarantee: the guarantees of releases rest on `clip`: for float32 and float64 vectors, the norm of each
    result, in exact arithmetic, is at most the given norm. On a grid, `Grid.round` checks this again.

    Attributes:
        name: the name for `clip_rule=`.
        clip: takes vectors (..., d) and a norm; returns clipped vectors. A vector with a non-finite entry becomes zero.
        divisor: the divisor of a vector, as a function of its length divided by the norm, without rounding.
        equal_lengths: whether all vectors except zero get the length of the norm.
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
    )  # else the squares of tiny entries, and the length, would underflow
    length = torch.linalg.vector_norm(doubles, dim=-1, keepdim=True)
    scaled: Tensor = (doubles / length * clip_bound(norm, vectors.dtype)).to(vectors.dtype)
    return scaled.nan_to_num_(0.0, 0.0, 0.0)


def clip_bound(norm: float, dtype: torch.dtype) -> float:
    """Return the length to which longer vectors are scaled, so that none exceeds `norm` after rounding to `dtype`."""
    return norm * (1 - _ROOM[dtype])


def divide_clipped(vectors: Tensor, excess: Tensor) -> Tensor:
    """Divide vectors, in place, by `excess`, their length over `clip_bound` in float64, where that exceeds 1.

    The division is in float64 and rounds once. An infinite excess makes zero; every NaN, from a vector or from infinity
    over infinity, becomes zero.
    """
    return vectors.div_(excess.clamp_min_(1.0)).nan_to_num_(0.0, 0.0, 0.0)


FLAT = ClippingRule("flat", clip_rows, lambda excess: np.maximum(excess, 1.0), automatic=True)
"""Scales longer vectors down to the norm and leaves shorter ones."""
NORMALISE = ClippingRule("normalise", normalise_rows, lambda excess: excess, equal_lengths=True, automatic=True)
"""Scales every vector except zero to the norm."""

RULES = {rule.name: rule for rule in (FLAT, NORMALISE)}
"""All clipping rules by name; `register_rule` adds one."""


def register_rule(rule: ClippingRule) -> None:
    """Register a clipping rule under its name, for `clip_rule=`."""
    if rule.name in ("auto", *RULES):
        raise DpvalueError(f"the name of a clipping rule must be new, got {rule.name!r}")
    RULES[rule.name] = rule


def find_rule(name: str) -> ClippingRule:
    """Return the clipping rule with this name."""
    require_choice("clip_rule", name, RULES)
    return RULES[name]
