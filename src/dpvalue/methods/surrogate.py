"""The public side of descriptions: a public model, directions, and the expected descriptions of public rows.

theta_p     the ridge fit of the public rows; H is their Hessian there
whitening   B = (H + kappa)^(-1/2): isotropic noise in these coordinates has an isotropic effect on the loss
clean       u0, the mean whitened gradient of public rows at models that were not trained on them
noise       u1, the same for labels that are independent of the features
directions  u1 - u0, then the leading singular directions of pseudo-parties with defects (`methods.windows`), each
            scaled to length 1, so that distant pseudo-parties do not dominate
windows     for a party of M units: the number of directions, the weight of all but the first (below 1, so that
            meaningless labels are measured best), and the clipping norm. The window maximises the information on
            pseudo-parties: the sum over directions of q log(1 + d / (h / M + noise)), where d is the squared
            deviation of a pseudo-party, h / M the variance of its mean, and q the effect on the loss.
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
from dpvalue.methods.windows import DEFECTS, DISTANCE, PRESENCE, WINDOW_ROWS, Window, pack_windows, unpack_windows
from dpvalue.models import Linear
from dpvalue.models.derived import EXTRA_NUMBERS, DescriptionModel
from dpvalue.privacy.clipping import FLAT
from dpvalue.streams import Purpose, stream

RIDGE = KAPPA = 0.1
MOST_DIRECTIONS = 40
LARGEST_MODEL = 2000
"""The largest number of parameters: a larger Hessian would take minutes."""
_FOLDS = 5
LEAST_PUBLIC = 4 * _FOLDS
_PARTIES, _RECORDS = 150, 200
_COUNTS = (1, 2, 3, 4, 6, 8, 11, 15, 20, 28, 40)
_LENGTHS = (0.7, 1.0, 1.5)  # relative to the 95% quantile of public descriptions
_REST = (0.6, 0.35)  # weights of all directions but the first
_QUANTILE = 0.95
_LEAST = 1e-6  # public rows that are fitted exactly have residuals of zero
_SURE = 3.0  # in variances of a pseudo-party's mean: smaller deviations count as zero


@dataclass(frozen=True, eq=False)
class Surrogate:
    """The public side of descriptions; made from public rows by `make_surrogate`.

    Attributes:
        origin: theta_p (d,).
        vectors: the directions (m, d); parties release whitened gradients along them.
        lift: the gradients (m, d) of unit descriptions in these directions.
        clean: the gradient (d,) of u0.
        noise: the gradient of u1, less `clean` (d,).
        public: number of public units behind the centres of windows.
        distance: squared residual of a record with distance 1.
        windows: the windows in use.
        window_indices: index of the window of each party (n,).
    """

    origin: Tensor
    vectors: Tensor
    lift: Tensor
    clean: Tensor
    noise: Tensor
    public: int
    distance: float
    windows: tuple[Window, ...]
    window_indices: Ints

    @property
    def size(self) -> int:
        """The number of numbers in a description."""
        return len(self.vectors) + EXTRA_NUMBERS

    def rounded(self, dtype: torch.dtype) -> Surrogate:
        """Return the surrogate with origin and directions rounded to `dtype`, as files and requests hold them."""
        origin, vectors = (part.to(dtype).to(part.dtype) for part in (self.origin, self.vectors))
        return replace(self, origin=origin, vectors=vectors)

    def window(self, party: int) -> Window:
        """Return the window of a party."""
        return self.windows[int(self.window_indices[party])]

    def description_model(self, model: Linear, like: Tensor) -> DescriptionModel:
        """Return the function from a record to its description."""
        return DescriptionModel(model, self.origin.to(like), self.vectors.to(like), self.distance)

    def weights(self) -> Tensor:
        """Return the weights of each party's description (n, size), which are its points."""
        by_window = torch.stack([window.weights(len(self.vectors)) for window in self.windows])
        return by_window[torch.from_numpy(self.window_indices)]

    def tensors(self) -> dict[str, Tensor]:
        """Return the tensors for a file, without origin and vectors, which the table holds."""
        plain = {name: getattr(self, name) for name in ("lift", "clean", "noise")}
        padded = pack_windows(self.windows, self.size)
        numbers = torch.tensor([self.distance, self.public], dtype=torch.float64)
        plain |= {"numbers": numbers, "windows": padded, "chosen": torch.from_numpy(self.window_indices)}
        return {name: tensor.contiguous() for name, tensor in plain.items()}

    @classmethod
    def from_tensors(cls, origin: Tensor, vectors: Tensor, parts: dict[str, Tensor]) -> Surrogate:
        """Return the surrogate of a file; raise if its tensors do not fit together."""
        directions, size = vectors.shape
        window_count = len(parts["windows"]) if "windows" in parts and parts["windows"].dim() else 0
        shapes = {
            "lift": (directions, size),
            "clean": (size,),
            "noise": (size,),
            "numbers": (2,),
            "windows": (max(window_count, 1), WINDOW_ROWS, directions + EXTRA_NUMBERS),
        }
        for name, shape in shapes.items():
            if name not in parts or parts[name].shape != shape or parts[name].dtype != torch.float64:
                raise DpvalueError(f"the tensor 'method.{name}' must be float64 of shape {shape}")
        for name, part in [("basis", vectors), *((f"method.{name}", parts[name]) for name in shapes)]:
            if not bool(part.isfinite().all()):
                raise DpvalueError(f"the tensor {name!r} must be of finite numbers")
        if not bool((parts["numbers"] > 0).all()):
            raise DpvalueError("the tensor 'method.numbers' must be of positive numbers")
        windows_tensor, window_indices = parts["windows"], parts.get("chosen")
        if (
            window_indices is None
            or window_indices.dtype != torch.int64
            or window_indices.dim() != 1
            or not len(window_indices)
        ):
            raise DpvalueError("the tensor 'method.chosen' must be a whole number per party")
        if int(window_indices.min()) < 0 or int(window_indices.max()) >= len(windows_tensor):
            raise DpvalueError("the tensor 'method.chosen' must hold indices of the windows")
        windows = unpack_windows(windows_tensor, directions)
        return cls(
            origin=origin.to(torch.float64),
            vectors=vectors.to(torch.float64),
            **{name: parts[name] for name in ("lift", "clean", "noise")},
            public=max(int(parts["numbers"][1]), 1),
            distance=float(parts["numbers"][0]),
            windows=windows,
            window_indices=window_indices.numpy(),
        )


def make_surrogate(model: Linear, public: PublicSet, units: Ints, noise: Floats, seed: int, whole: bool) -> Surrogate:
    """Return the public side of descriptions for parties with these numbers of units.

    Formal guarantee: reads public rows and public sizes only.

    Args:
        model: the refitted model.
        public: the public rows.
        units: number of averaged units of each party (n,).
        noise: noise standard deviation of each party's release, in clipping norms (n,); zero without noise.
        seed: seed of the pseudo-parties.
        whole: whether parties are clipped as a whole, instead of unit by unit.
    """
    rows = Rows.of(model, public)
    return _Maker(rows, stream(seed, Purpose.REFIT), whole).surrogate(units, noise)


class _Maker:
    """Whitened public rows, and pseudo-parties made of them."""

    def __init__(self, rows: Rows, generator: np.random.Generator, whole: bool) -> None:
        self.rows, self.generator, self.whole = rows, generator, whole
        self.origin = fit(rows, RIDGE)
        self.eigenvalues, self.eigenvectors = torch.linalg.eigh(rows.curvature(self.origin))
        self.eigenvalues = self.eigenvalues.clamp_min(0)
        self.shrink = (self.eigenvalues + KAPPA).rsqrt()
        self.fold = torch.from_numpy(generator.permutation(len(rows.x)) % _FOLDS)
        models = [fit(rows.select((self.fold != number).to(rows.x.device)), RIDGE) for number in range(_FOLDS)]
        self.fold_models = torch.stack(models).unflatten(1, (rows.y.shape[1], -1))
        whitened, residuals = self.whitened_gradients(rows, self.fold)
        squared = residuals.square().sum(1)
        self.distance = max(16 * float(squared.mean()), _LEAST) if rows.regression else 2.0
        self.public = whitened, self._distances(squared)
        self.clean = whitened.mean(0)
        meaningless = Rows(rows.x, rows.y.mean(0, keepdim=True).expand_as(rows.y), rows.regression)
        self.noise = self.whitened_gradients(meaningless, self.fold)[0].mean(0) - self.clean

    def _distances(self, squared: Tensor) -> Tensor:
        return (squared / self.distance).clamp_max(1.0)

    def whitened_gradients(self, rows: Rows, fold: Tensor) -> tuple[Tensor, Tensor]:
        """The whitened gradients (rows, d) and residuals (rows, o), each by the model trained without its fold."""
        outputs = (self.fold_models[fold.to(rows.x.device)] @ rows.x.unsqueeze(-1)).squeeze(-1)
        residuals = rows.residuals(outputs.T).T
        gradients = (residuals.unsqueeze(-1) * rows.x.unsqueeze(-2)).flatten(1)
        return (gradients @ self.eigenvectors) * self.shrink, residuals

    def _pseudo_parties(self) -> Iterator[tuple[Tensor, Tensor]]:
        """The whitened gradients (records, d) and distances (records,) of pseudo-parties."""
        for number in range(_PARTIES):
            count = min(len(self.rows.x), _RECORDS)
            party, rows = DEFECTS[number % len(DEFECTS)](self.rows, self.generator, count)
            whitened, residuals = self.whitened_gradients(party, self.fold[rows])
            yield whitened, self._distances(residuals.square().sum(1))

    @cached_property
    def _parties(self) -> tuple[Tensor, Tensor, Tensor]:
        """Directions (d, m); pseudo-parties along them (parties, records, m); their distances (parties, records)."""
        parties = list(self._pseudo_parties())
        first = self.noise / self.noise.norm().clamp_min(1e-12)
        deviations = torch.stack([whitened.mean(0) for whitened, _ in parties]) - self.clean
        deviations = deviations - (deviations @ first)[:, None] * first
        deviations = deviations / deviations.norm(dim=1, keepdim=True).clamp_min(1e-12)
        rest = torch.linalg.svd(deviations, full_matrices=False)[2]
        most = min(MOST_DIRECTIONS, len(first) - 1, len(rest) + 1)
        directions = torch.linalg.qr(torch.cat([first[None], rest])[:most].T)[0]
        directions = directions * torch.where(directions[:, :1].T @ first[:, None] < 0, -1.0, 1.0)
        along = torch.stack([whitened @ directions for whitened, _ in parties])
        return directions, along, torch.stack([distance for _, distance in parties])

    def surrogate(self, units: Ints, noise: Floats) -> Surrogate:
        directions, _, _ = self._parties
        windows = self._windows()
        effect = self.eigenvalues * (self.eigenvalues + KAPPA) / (self.eigenvalues + RIDGE) ** 2
        effect = (directions.T.square() @ effect).clamp_min(0)
        bits: dict[tuple[int, float], int] = {}
        for size, std in set(zip(units.tolist(), noise.tolist(), strict=True)):
            scores = []
            for window, squares in windows:
                k = window.count
                chance = window.spread[:k] * (1 / max(size, 1) + 1 / len(self.rows.x)) + (std * window.norm) ** 2
                scores.append(float((effect[:k] * torch.log1p(squares / chance)).sum(1).mean()))
            bits[size, std] = int(np.argmax(scores))
        best = np.array([bits[key] for key in zip(units.tolist(), noise.tolist(), strict=True)], dtype=np.int64)
        used_windows, places = np.unique(best, return_inverse=True)
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
            windows=tuple(windows[number][0] for number in used_windows),
            window_indices=places.reshape(-1).astype(np.int64),
        )

    def _windows(self) -> list[tuple[Window, Tensor]]:
        """All windows, and the squared deviations of pseudo-parties in their directions (parties, count)."""
        directions, along, distances = self._parties
        whitened, distance = self.public
        public = whitened @ directions
        bounded = along.mean(1) if self.whole else public  # means of parties, or units
        shuffled = self.rows.y[self.generator.permutation(len(public))]
        meaningless = Rows(self.rows.x, shuffled, self.rows.regression)
        noisy, residuals = self.whitened_gradients(meaningless, self.fold)
        noisy, noisy_distance = noisy @ directions, self._distances(residuals.square().sum(1))
        windows = []
        for profile in self._profiles(directions):
            count = len(profile)
            longest = (bounded[:, :count] * profile).norm(dim=1).quantile(_QUANTILE)
            for length in _LENGTHS:
                scale = max(float(longest) * length, _LEAST)
                norm = scale * (1 + PRESENCE**2 + (DISTANCE * float(distance.mean())) ** 2) ** 0.5
                clip = _Clip(profile, scale, norm, self.whole)
                clean = clip(public, distance)
                centre = clean.mean(0)
                added = clip(noisy, noisy_distance).mean(0) - centre
                parties = clip(along, distances)
                means = parties.mean(1)
                # The variance of a mean, by moments: `var` along this axis takes ten times as long.
                chance = (parties.square().mean(1) - means.square()).clamp_min(0) / (parties.shape[1] - 1)
                means = means - centre
                share = (means @ added / added.square().sum().clamp_min(1e-12)).clamp(0, 1.5)[:, None]
                beyond = ((means - share * added).square() - chance)[:, :count].clamp_min(0).mean(0)
                vectors = (part.cpu() for part in (centre, added, beyond, clean.var(0), profile))
                window = Window(count, norm, scale, *vectors)
                windows.append((window, (means.square() - _SURE * chance)[:, :count].clamp_min(0).cpu()))
        return windows

    @staticmethod
    def _profiles(directions: Tensor) -> Iterator[Tensor]:
        """The candidate weights of directions: 1 for the first, less for the others."""
        for count in sorted({min(count, directions.shape[1]) for count in _COUNTS}):
            for rest in _REST[: 1 if count == 1 else None]:
                profile = torch.full((count,), rest).to(directions)
                profile[0] = 1.0
                yield profile


@dataclass(frozen=True, eq=False)
class _Clip:
    """Clipping of unit descriptions in one window."""

    profile: Tensor
    scale: float
    norm: float
    whole: bool

    def __call__(self, along: Tensor, distance: Tensor) -> Tensor:
        presence = torch.full_like(distance, PRESENCE * self.scale)
        weighted, distance = along[..., : len(self.profile)] * self.profile, DISTANCE * self.scale * distance
        full = torch.cat([weighted, presence.unsqueeze(-1), distance.unsqueeze(-1)], dim=-1)
        if self.whole:
            return full
        return FLAT.clip(full, self.norm)
