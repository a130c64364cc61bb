"""The public side of a description: a public model, directions to describe records in, and what to expect there.

theta_p     the ridge fit of the public rows; H, their curvature there
whitening   B = (H + kappa)^(-1/2): noise that is round in these coordinates is round in what it does to the loss
clean       u0, the mean whitened gradient of public rows at models that did not see them
noise       u1, the same for labels that have nothing to do with features
directions  the way from u0 to u1, then the leading singular directions of made-up parties (`planted`), each scaled
            to length 1, so that none is heard more for being further off
windows     for a party of M units: how many directions, how much less all but the first weigh, so that the way to
            meaningless labels is heard best, and how long a description may be. Of all windows the one through
            which made-up parties show the most bits: sum over directions of q log(1 + d / (h / M + noise)),
            d being what a made-up party is off, h / M what chance would be, q how much the loss feels it.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats, Ints
from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.methods.fits import Rows, fit
from dpvalue.methods.windows import DEFECTS, DISTANCE, PRESENCE, WINDOW_ROWS, Window, packed_windows, unpacked_windows
from dpvalue.models import Linear
from dpvalue.models.derived import EXTRA_NUMBERS, DescriptionModel
from dpvalue.privacy.clipping import FLAT
from dpvalue.streams import Purpose, stream

RIDGE = KAPPA = 0.1
MOST_DIRECTIONS = 40
LARGEST_MODEL = 2000
"""Parameters of a model: more would take minutes (the curvature is a square of them)."""
_FOLDS = 5
LEAST_PUBLIC = 4 * _FOLDS
_PARTIES, _RECORDS = 150, 200
_COUNTS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40)
_LENGTHS = (0.7, 1.0, 1.5)  # of the 95% quantile of public descriptions
_REST = (0.6, 0.35)  # what all directions but the first are multiplied by
_QUANTILE = 0.95
_LEAST = 1e-6  # where public rows fit to the last digit, nothing has a length
_SURE = 3.0  # a made-up party is off by what is beyond three times the variance of its mean


@dataclass(frozen=True, eq=False)
class Surrogate:
    """All that is needed to ask for descriptions and to read them; made from public rows by `make_surrogate`.

    Attributes:
        origin: theta_p (d,).
        vectors: the directions (m, d): whitened gradients along them are what is released.
        lift: the gradients (m, d) that these directions stand for.
        clean: the gradient (d,) that u0 stands for.
        noise: what labels without meaning add to it (d,).
        public: how many public units the centres of windows are means of.
        distance: the squared residual at which the distance of a record is 1.
        windows: those that are used.
        chosen: which of them each party has (n,).
    """

    origin: Tensor
    vectors: Tensor
    lift: Tensor
    clean: Tensor
    noise: Tensor
    public: int
    distance: float
    windows: tuple[Window, ...]
    chosen: Ints

    @property
    def size(self) -> int:
        """How many numbers a description has."""
        return len(self.vectors) + EXTRA_NUMBERS

    def rounded(self, dtype: torch.dtype) -> Surrogate:
        """Return it with origin and directions as rows are asked through them, and as files hold them."""
        origin, vectors = (part.to(dtype).to(part.dtype) for part in (self.origin, self.vectors))
        return replace(self, origin=origin, vectors=vectors)

    def window(self, party: int) -> Window:
        """Return the window of a party."""
        return self.windows[int(self.chosen[party])]

    def described(self, model: Linear, like: Tensor) -> DescriptionModel:
        """Return what records are asked through."""
        return DescriptionModel(model, self.origin.to(like), self.vectors.to(like), self.distance)

    def weights(self) -> Tensor:
        """Return what each party is asked at (n, size)."""
        by_window = torch.stack([window.weights(len(self.vectors)) for window in self.windows])
        return by_window[torch.from_numpy(self.chosen)]

    def tensors(self) -> dict[str, Tensor]:
        """Return it as tensors for a file, without what a table has anyway (origin and vectors)."""
        plain = {name: getattr(self, name) for name in ("lift", "clean", "noise")}
        padded = packed_windows(self.windows, self.size)
        numbers = torch.tensor([self.distance, self.public], dtype=torch.float64)
        plain |= {"numbers": numbers, "windows": padded, "chosen": torch.from_numpy(self.chosen)}
        return {name: tensor.contiguous() for name, tensor in plain.items()}

    @classmethod
    def from_tensors(cls, origin: Tensor, vectors: Tensor, parts: dict[str, Tensor]) -> Surrogate:
        """Return what a file holds; raises unless everything fits together."""
        directions, size = vectors.shape
        used = len(parts["windows"]) if "windows" in parts and parts["windows"].dim() else 0
        shapes = {
            "lift": (directions, size),
            "clean": (size,),
            "noise": (size,),
            "numbers": (2,),
            "windows": (max(used, 1), WINDOW_ROWS, directions + EXTRA_NUMBERS),
        }
        for name, shape in shapes.items():
            if name not in parts or parts[name].shape != shape or parts[name].dtype != torch.float64:
                raise DpvalueError(f"the tensor 'method.{name}' must be float64 of shape {shape}")
        for name, part in [("basis", vectors), *((f"method.{name}", parts[name]) for name in shapes)]:
            if not bool(part.isfinite().all()):
                raise DpvalueError(f"the tensor {name!r} must be of finite numbers")
        if not bool((parts["numbers"] > 0).all()):
            raise DpvalueError("the tensor 'method.numbers' must be of positive numbers")
        stored, chosen = parts["windows"], parts.get("chosen")
        if chosen is None or chosen.dtype != torch.int64 or chosen.dim() != 1 or not len(chosen):
            raise DpvalueError("the tensor 'method.chosen' must be a whole number per party")
        if int(chosen.min()) < 0 or int(chosen.max()) >= len(stored):
            raise DpvalueError("the tensor 'method.chosen' must hold indices of the windows")
        windows = unpacked_windows(stored, directions)
        return cls(
            origin=origin.to(torch.float64),
            vectors=vectors.to(torch.float64),
            **{name: parts[name] for name in ("lift", "clean", "noise")},
            public=max(int(parts["numbers"][1]), 1),
            distance=float(parts["numbers"][0]),
            windows=windows,
            chosen=chosen.numpy(),
        )


def make_surrogate(model: Linear, public: PublicSet, units: Ints, noise: Floats, seed: int, whole: bool) -> Surrogate:
    """Return the public side of a description for parties of these numbers of units.

    Formal guarantee: reads public rows and public sizes only.

    Args:
        model: what is trained.
        public: the public rows.
        units: the number of units of each party whose descriptions are averaged.
        noise: the noise of each party's release, in clipping norms; zero for none.
        seed: of what is made up.
        whole: whether parties are clipped as a whole, and not their units.
    """
    rows = Rows.of(model, public)
    return _Maker(rows, stream(seed, Purpose.REFIT), whole).surrogate(units, noise)


class _Maker:
    """Public rows, whitened, and made-up parties of them."""

    def __init__(self, rows: Rows, generator: np.random.Generator, whole: bool) -> None:
        self.rows, self.generator, self.whole = rows, generator, whole
        self.origin = fit(rows, RIDGE)
        self.eigenvalues, self.eigenvectors = torch.linalg.eigh(rows.curvature(self.origin))
        self.eigenvalues = self.eigenvalues.clamp_min(0)
        self.shrink = (self.eigenvalues + KAPPA).rsqrt()
        self.fold = torch.from_numpy(generator.permutation(len(rows.x)) % _FOLDS)
        fitted = [fit(rows.take((self.fold != number).to(rows.x.device)), RIDGE) for number in range(_FOLDS)]
        self.fitted = torch.stack(fitted).unflatten(1, (rows.y.shape[1], -1))
        whitened, residuals = self.held_out(rows, self.fold)
        squared = residuals.square().sum(1)
        self.distance = max(16 * float(squared.mean()), _LEAST) if rows.regression else 2.0
        self.public = whitened, self._off(squared)
        self.clean = whitened.mean(0)
        meaningless = Rows(rows.x, rows.y.mean(0, keepdim=True).expand_as(rows.y), rows.regression)
        self.noise = self.held_out(meaningless, self.fold)[0].mean(0) - self.clean

    def _off(self, squared: Tensor) -> Tensor:
        return (squared / self.distance).clamp_max(1.0)

    def held_out(self, rows: Rows, fold: Tensor) -> tuple[Tensor, Tensor]:
        """The whitened gradients (rows, d) and residuals (rows, o), each by the model that did not see its fold."""
        outputs = (self.fitted[fold.to(rows.x.device)] @ rows.x.unsqueeze(-1)).squeeze(-1)
        residuals = rows.residuals(outputs.T).T
        gradients = (residuals.unsqueeze(-1) * rows.x.unsqueeze(-2)).flatten(1)
        return (gradients @ self.eigenvectors) * self.shrink, residuals

    def _made_up(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The whitened gradients (records, d) and distances (records,) of made-up parties."""
        for number in range(_PARTIES):
            count = min(len(self.rows.x), _RECORDS)
            party, drawn = DEFECTS[number % len(DEFECTS)](self.rows, self.generator, count)
            whitened, residuals = self.held_out(party, self.fold[drawn])
            yield whitened, self._off(residuals.square().sum(1))

    @cached_property
    def _parties(self) -> tuple[Tensor, Tensor, Tensor]:
        """Directions (d, m), and made-up parties along them: (parties, records, m) and (parties, records)."""
        parties = list(self._made_up())
        first = self.noise / self.noise.norm().clamp_min(1e-12)
        off = torch.stack([whitened.mean(0) for whitened, _ in parties]) - self.clean
        off = off - (off @ first)[:, None] * first
        off = off / off.norm(dim=1, keepdim=True).clamp_min(1e-12)
        others = torch.linalg.svd(off, full_matrices=False)[2]
        most = min(MOST_DIRECTIONS, len(first) - 1, len(others) + 1)
        directions = torch.linalg.qr(torch.cat([first[None], others])[:most].T)[0]
        directions = directions * torch.where(directions[:, :1].T @ first[:, None] < 0, -1.0, 1.0)
        along = torch.stack([whitened @ directions for whitened, _ in parties])
        return directions, along, torch.stack([distance for _, distance in parties])

    def surrogate(self, units: Ints, noise: Floats) -> Surrogate:
        directions, _, _ = self._parties
        windows = self._windows()
        felt = self.eigenvalues * (self.eigenvalues + KAPPA) / (self.eigenvalues + RIDGE) ** 2
        felt = (directions.T.square() @ felt).clamp_min(0)
        bits: dict[tuple[int, float], int] = {}
        for size, std in set(zip(units.tolist(), noise.tolist(), strict=True)):
            scores = []
            for window, off in windows:
                k = window.count
                chance = window.spread[:k] * (1 / max(size, 1) + 1 / len(self.rows.x)) + (std * window.norm) ** 2
                scores.append(float((felt[:k] * torch.log1p(off / chance)).sum(1).mean()))
            bits[size, std] = int(np.argmax(scores))
        chosen = np.array([bits[key] for key in zip(units.tolist(), noise.tolist(), strict=True)], dtype=np.int64)
        used, places = np.unique(chosen, return_inverse=True)
        whiten, unwhiten = self.eigenvectors * self.shrink, self.eigenvectors / self.shrink
        parts = {
            "origin": self.origin,
            "vectors": (whiten @ directions).T,
            "lift": (unwhiten @ directions).T,
            "clean": unwhiten @ self.clean,
            "noise": unwhiten @ self.noise,
        }
        return Surrogate(
            **{name: part.cpu().contiguous() for name, part in parts.items()},
            public=len(self.rows.x),
            distance=self.distance,
            windows=tuple(windows[number][0] for number in used),
            chosen=places.reshape(-1).astype(np.int64),
        )

    def _windows(self) -> list[tuple[Window, Tensor]]:
        """All windows, and how far made-up parties are off in their directions (parties, count), squared."""
        directions, along, distances = self._parties
        whitened, distance = self.public
        public = whitened @ directions
        bounded = along.mean(1) if self.whole else public  # what is clipped: means of parties, or units
        shuffled = self.rows.y[self.generator.permutation(len(public))]
        meaningless = Rows(self.rows.x, shuffled, self.rows.regression)
        noisy, residuals = self.held_out(meaningless, self.fold)
        noisy, off = noisy @ directions, self._off(residuals.square().sum(1))
        made = []
        for profile in self._profiles(directions):
            count = len(profile)
            longest = (bounded[:, :count] * profile).norm(dim=1).quantile(_QUANTILE)
            for length in _LENGTHS:
                scale = max(float(longest) * length, _LEAST)
                norm = scale * (1 + PRESENCE**2 + (DISTANCE * float(distance.mean())) ** 2) ** 0.5
                clip = _Clip(profile, scale, norm, self.whole)
                clean = clip(public, distance)
                centre = clean.mean(0)
                added = clip(noisy, off).mean(0) - centre
                parties = clip(along, distances)
                means = parties.mean(1)
                # The variance of a mean, by moments: `var` along this axis takes ten times as long.
                chance = (parties.square().mean(1) - means.square()).clamp_min(0) / (parties.shape[1] - 1)
                means = means - centre
                share = (means @ added / added.square().sum().clamp_min(1e-12)).clamp(0, 1.5)[:, None]
                beyond = ((means - share * added).square() - chance)[:, :count].clamp_min(0).mean(0)
                vectors = (part.cpu() for part in (centre, added, beyond, clean.var(0), profile))
                window = Window(count, norm, scale, *vectors)
                made.append((window, (means.square() - _SURE * chance)[:, :count].clamp_min(0).cpu()))
        return made

    @staticmethod
    def _profiles(directions: Tensor) -> Iterator[Tensor]:
        """What directions may be multiplied by: the first by 1, as many others as there are windows by less."""
        for count in sorted({min(count, directions.shape[1]) for count in _COUNTS}):
            for rest in _REST[: 1 if count == 1 else None]:
                profile = torch.full((count,), rest).to(directions)
                profile[0] = 1.0
                yield profile


@dataclass(frozen=True, eq=False)
class _Clip:
    """Descriptions of units as they are clipped, in one window."""

    profile: Tensor
    scale: float
    norm: float
    whole: bool

    def __call__(self, along: Tensor, distance: Tensor) -> Tensor:
        presence = torch.full_like(distance, PRESENCE * self.scale)
        weighed, distance = along[..., : len(self.profile)] * self.profile, DISTANCE * self.scale * distance
        full = torch.cat([weighed, presence.unsqueeze(-1), distance.unsqueeze(-1)], dim=-1)
        if self.whole:
            return full
        return FLAT.clip(full, self.norm)
