"""What the paper may have run: readings of its text, told apart by what they say of clipping, Beta and pixels.

As printed, contributions are clipped to 1, noise is a multiple of that, and Beta(a, b) is Kwon and Zou's. As it seems
to have been run, noise is the same, but no gradient of the networks is as long as the clip, and Beta(a, b) weighs large
coalitions: it is their Beta(b, a). This is inferred from numbers: the authors' code was not at hand.

Where clipping does not bind, noise that belongs to a clip of 1 protects nothing by any bound: a gradient may have any
length. What such releases spend is said for the longest gradient that was seen in them.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from threading import Lock

import torch
from torch import Tensor

from dpvalue.experiments.paper.problem import PaperProblem
from dpvalue.privacy.clipping import FLAT, ClippingRule, clip_rows, register_rule

CLIP = 1.0
"""The paper's clip, and the unit of its noise."""
LOOSE = 300.0
"""A clip that hardly ever binds: the longest gradient of MNIST's CNN at the fitted rate is 120 long."""
WATCHED = "watched"


@dataclass(frozen=True)
class PaperReading:
    """A way to read the paper.

    Attributes:
        name: as pages name it.
        binds: whether gradients are clipped to `CLIP`; if not, to `LOOSE`, while noise stays as it is.
        swapped: whether Beta(a, b) is Kwon and Zou's Beta(b, a).
        standardised: whether pixels are standardised by the public rows; else they are from 0 to 1.
        rate: the learning rate; None searches it on public rows.
    """

    name: str
    binds: bool = True
    swapped: bool = False
    standardised: bool = False
    rate: float | None = None

    @property
    def clip(self) -> float:
        """The norm that gradients are clipped to."""
        return CLIP if self.binds else LOOSE

    @property
    def rule(self) -> str:
        """The clipping rule: one that keeps the longest gradient where nothing else bounds it."""
        return FLAT.name if self.binds else WATCHED

    def kind(self, printed: str) -> str:
        """Return the semivalue that is meant by what the paper prints."""
        if not (self.swapped and printed.startswith("beta(")):
            return printed
        one, other = printed.removeprefix("beta(").removesuffix(")").split(",")
        return f"beta({other},{one})"

    def walks_like(self, other: PaperReading) -> bool:
        """Whether walks are the same, and only what their values are called differs."""
        return replace(self, name="", swapped=False) == replace(other, name="", swapped=False)

    def scaled(self, problem: PaperProblem) -> PaperProblem:
        """Return a problem of images with pixels as this reading has them."""
        return problem.standardised() if self.standardised else problem

    def at(self, rate: float | None, name: str | None = None) -> PaperReading:
        """Return the reading at a learning rate of its own."""
        return replace(self, rate=rate, name=name or self.name)


AS_PRINTED = PaperReading("as printed")
AS_RUN = PaperReading("as it seems to have been run", binds=False, swapped=True)


class Watch:
    """Clips, and keeps the length of the longest vector of each of some runs that it was given since `start`.

    Of runs that are walked side by side the vectors come in turn: one of each, in their order.
    """

    def __init__(self) -> None:
        self._runs = 1
        self._longest: dict[torch.device, Tensor] = {}
        self._lock = Lock()  # pieces of a step may be clipped in several threads

    def start(self, runs: int = 1) -> None:
        """Forget what was seen, and watch so many runs; for as many as before the place stays: graphs write there."""
        if runs != self._runs:
            self._runs, self._longest = runs, {}
        for longest in self._longest.values():
            longest.zero_()

    def longest(self, run: int = 0) -> float:
        """Return the length of the longest vector of a run."""
        return max((float(longest[run]) for longest in self._longest.values()), default=0.0)

    def clip(self, vectors: Tensor, norm: float) -> Tensor:
        """Return the vectors, clipped as by the rule "flat"."""
        with self._lock:
            if vectors.device not in self._longest:
                self._longest[vectors.device] = torch.zeros(self._runs, device=vectors.device)
            longest = self._longest[vectors.device]
            norms = torch.linalg.vector_norm(vectors, dim=-1).nan_to_num(0.0, 0.0, 0.0)
            longest.copy_(torch.maximum(longest, norms.reshape(-1, self._runs).amax(0)))
        return clip_rows(vectors, norm)


WATCH = Watch()
register_rule(ClippingRule(WATCHED, WATCH.clip, FLAT.divisor))
