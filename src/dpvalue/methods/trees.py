"""Counts in public trees: each data set releases how many of its records fall into each leaf, with their classes.

A small forest is grown on public rows and travels in the job. A record is a one at its leaf and class in each of the B
trees, so that a unit moves counts by sqrt(B) at most. A coalition is worth what the forest predicts whose leaves hold
the coalition's class shares: no gradients, no fits, any metric.

The trees are grown in `methods.growing`, filled and judged in `methods.leaves`, releases are read in
`methods.leaf_posterior`, the game is in `methods.leaf_game`, what to expect of it in `methods.leaf_rehearsal`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from functools import cached_property
from math import sqrt
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dpvalue.data.utility import LOSS, PublicSet
from dpvalue.display import MOST_NAMED, counted
from dpvalue.engine.engines import Engine
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method
from dpvalue.methods.growing import even_salt, fold_of, grow_forest
from dpvalue.methods.leaf_coverage import CellHolding, holdings
from dpvalue.methods.leaf_game import LeafGame
from dpvalue.methods.leaf_posterior import LeafPosterior
from dpvalue.methods.leaf_rehearsal import expected_agreement
from dpvalue.methods.leaf_rule import COARSE, FOREST, TOGETHER, ForestShape, choose_forest
from dpvalue.methods.leaves import Grown, Judge
from dpvalue.models import CLASSIFICATION, TREES, Forest, LeafOnes, Unsplit
from dpvalue.models.forest import MOST_CLASSES
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Agreement, Situation
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import LeafCounts, Statistic
from dpvalue.stored import COUNT, POSITIVE, WHOLE, fields
from dpvalue.streams import Purpose, stream

if TYPE_CHECKING:
    from dpvalue.methods.table import ReleaseTable

LEAST_PUBLIC = 40
_ROOM = 1 - 2.0**-19  # clipping takes a hair off what is as long as the norm; ones are to pass whole
_HEADER = fields(classes=COUNT, salt=WHOLE, smoothing=POSITIVE, sharpness=POSITIVE)


def norm_of(trees: int) -> float:
    """Return the clipping norm for a one in each of so many trees: sqrt(trees), and a hair.

    Formal guarantee: no record, person or party contributes more; under "zero_out" that is the sensitivity. Under
    "replace" it is twice that, as for any vectors of that length; ones could be calibrated to sqrt(2) times it.
    """
    return sqrt(trees) / _ROOM


@dataclass(frozen=True, eq=False)
class Trees(Method):
    """Counts in the leaves of public trees are released; v(S) is the utility of the forest filled with those of S.

    Args:
        grown: the forest.
        public: the shares of public rows in its cells (trees, leaves, classes).
    """

    name: ClassVar[str] = TREES
    game_name: ClassVar[str] = "counts in public trees"
    summary: ClassVar[str] = (
        "released how many of its records fall into each leaf of public trees, by class: what is valued is the forest "
        "filled with a coalition's counts"
    )
    one_release: ClassVar[bool] = True
    is_selectable: ClassVar[bool] = False

    grown: Grown
    public: Tensor

    @property
    def statistic(self) -> Statistic:
        """A unit's ones."""
        return LeafCounts(self.grown.forest, self.grown.classes)

    @property
    def released(self) -> str:
        """The shape of the forest."""
        forest = self.grown.forest
        return f"counts in {counted(forest.trees, 'public tree')} of up to {forest.leaves} leaves"

    @cached_property
    def ones(self) -> LeafOnes:
        """What rows are asked through."""
        return LeafOnes(self.grown.forest, self.grown.classes)

    @classmethod
    def unmet_requirement(cls, situation: Situation) -> str:
        """Return what counts need and do not have here.

        Formal guarantee: reads public rows and sizes only.
        """
        model, privacy = situation.model, situation.settings.privacy
        classes = model.width if isinstance(model, Unsplit) else 0
        needed = {
            "is for classification": isinstance(model, Unsplit) and model.task == CLASSIFICATION,
            f"is for classification with up to {MOST_CLASSES} classes, got {classes}": classes <= MOST_CLASSES,
            f"needs at least {LEAST_PUBLIC} public rows, got {len(situation.public.x)}": len(situation.public.x)
            >= LEAST_PUBLIC,
            "values data sets: give groups, as counts of one row say nothing": situation.has_sets,
            "needs a utility with l2 = 0, as it has no parameters": not situation.public.l2,
            "needs Gaussian noise (delta above 0)": privacy is None or privacy.vector_law is not None,
            "needs accounting='composition'": privacy is None or privacy.accounting == "composition",
        }
        return next((reason for reason, holds in needed.items() if not holds), "")

    @classmethod
    def require_budget(cls, privacy: Privacy, auc: float | None) -> None:
        """Raise where there is no Gaussian noise, or an AUC is asked for."""
        if auc is not None:
            raise DpvalueError(
                "auc is about finding wrong parties by steps: trees say how values agree with retraining"
            )
        if privacy.vector_law is None or privacy.accounting != "composition":
            raise DpvalueError("model='trees' needs Gaussian noise (delta above 0), and accounting='composition'")

    @classmethod
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Decide everything about the one release: the trees, how they are read, and the noise."""
        settings, privacy = situation.settings, situation.settings.privacy
        assert isinstance(situation.model, Unsplit)
        law = "gaussian" if privacy is None else privacy.vector_law
        assert law is not None
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(1, situation.n, law)
        unit, neighbours = ("record", "zero_out") if privacy is None else (privacy.unit, privacy.neighbours)
        typical = float(np.median(np.maximum(situation.averaged_units(unit), 1)))
        shape = choose_forest(situation.n, situation.model.width, multiplier / typical)
        method = cls.of_shape(shape, situation.public, situation.model.width, settings.seed)
        if shape is COARSE:
            whole = cls.of_shape(FOREST, situation.public, situation.model.width, settings.seed)
            gains = [made.public_gain(situation.public, settings.engine) for made in (whole, method)]
            method = whole if gains[0] > TOGETHER * gains[1] else method
        norm = norm_of(method.grown.forest.trees)
        return Choice(
            method=method,
            model=method.ones,
            initial=situation.initial.new_zeros(method.ones.size),
            basis=None,
            schedule=Schedule("replay", rounds=1, probes=1),
            releases=1,
            mechanism=Mechanism(norm, multiplier, unit, neighbours, law),
            learning_rate=1.0,
            guarantee=guarantee(privacy, multiplier, 1, norm, settings.noise == "fast", law, settings.ledger_terms),
        )

    @classmethod
    def of_shape(cls, shape: ForestShape, public: PublicSet, classes: int, seed: int) -> Self:
        """Return the method with a forest of this shape, grown on public rows.

        Formal guarantee: reads public rows only.
        """
        salt = even_salt(public.x, public.y, shape.folds)
        folds, generator = fold_of(public.x, salt, shape.folds), stream(seed, Purpose.FOREST)
        forest, judged_by = grow_forest(public.x, public.y, classes, folds, shape, generator)
        ones = LeafOnes(forest, classes)
        cells = ones.ones(ones.inputs(public.x), public.y, public.x.new_zeros(1, dtype=torch.float64))
        shares = cells.mean(0).view(forest.trees, forest.leaves, classes).cpu()
        return cls(Grown(forest, classes, judged_by, salt, shape.smoothing, shape.sharpness), shares)

    def public_gain(self, public: PublicSet, engine: Engine) -> float:
        """Return by how much the forest, filled with the public rows, predicts them better than their class shares do.

        Formal guarantee: reads public rows only.
        """
        counts = len(public.x) * self.public.flatten()[None]
        worth = Judge(self.grown, replace(public, metric=LOSS), engine)(torch.nn.functional.pad(counts, (0, 1)))
        shares = torch.bincount(public.y.cpu()).double() / len(public.y)
        return float(worth[0]) - float(torch.special.xlogy(shares, shares).sum())

    def expectation(self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Agreement:
        """Return how well values are expected to agree with retraining, by rehearsal on public rows."""
        mechanism = choice.mechanism
        units = situation.averaged_units(mechanism.unit)
        noise = mechanism.noise_std(torch.from_numpy(situation.units)).numpy()
        grown = self.grown
        numbers = grown.smoothing, grown.sharpness, grown.folds
        shape = ForestShape(grown.forest.trees, grown.forest.leaves, *numbers)
        return expected_agreement(type(self).of_shape, shape, situation, units, noise)

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> LeafGame:
        """Return the game of the table's counts."""
        return self.game_of(public, engine, table.rows, table.noise_std, table.sizes)

    def game_of(
        self, public: PublicSet, engine: Engine, rows: Tensor, noise_std: np.ndarray, units: np.ndarray
    ) -> LeafGame:
        """Return the game of such releases, judged by public rows."""
        judge, posterior = Judge(self.grown, public, engine), LeafPosterior(self.grown, public)
        return LeafGame(judge, posterior, rows, noise_std, units)

    def coverage(self, table: ReleaseTable) -> tuple[CellHolding, ...]:
        """Return what parties mostly hold themselves, for sure, of classes and of nodes near the roots."""
        if table.n > MOST_NAMED:
            return ()
        rows = table.rows.to("cpu", torch.float64).numpy()
        return holdings(self.grown, rows, table.noise_std, table.sizes, table.names, table.encoding, table.counted)

    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> LeafGame:
        """Return the game of parties with these counts, of the first sizes."""
        few, engine = np.arange(len(rows)) % situation.n, situation.settings.engine
        noise = choice.mechanism.noise_std(torch.from_numpy(situation.units[few])).numpy()
        return self.game_of(situation.public, engine, rows, noise, np.maximum(situation.sizes[few], 1))

    def digest(self, model: Any, example_row: Tensor) -> str:
        """Return the digest of ones in these trees."""
        return self.ones.digest()

    def header(self) -> dict[str, Any]:
        """Return the numbers of the forest's reading."""
        return {name: getattr(self.grown, name) for name in ("classes", "salt", "smoothing", "sharpness")}

    def tensors(self) -> Tensors:
        """Return the trees and the public shares for a file."""
        beside = {"judged_by": torch.from_numpy(self.grown.judged_by), "public": self.public}
        return self.grown.forest.tensors() | beside

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return what a file describes; raises unless trees and shares fit together."""
        _HEADER("method", header)
        forest, classes = Forest.of_tensors(tensors), header["classes"]
        statistic = LeafCounts(forest, classes)
        statistic.require_basis(basis)
        if len(origin) != statistic.width(0):
            raise DpvalueError(f"initial must have the {statistic.width(0)} numbers of the trees, got {len(origin)}")
        judged_by, public = tensors.get("judged_by"), tensors.get("public")
        if judged_by is None or judged_by.dtype != torch.int64 or judged_by.shape != (forest.trees,):
            raise DpvalueError("the tensor 'method.judged_by' must be a whole number a tree")
        numbers = float(header["smoothing"]), float(header["sharpness"])
        grown = Grown(forest, classes, judged_by.numpy(), header["salt"], *numbers)
        if public is None or public.dtype != torch.float64 or tuple(public.shape) != grown.shape:
            raise DpvalueError(f"the tensor 'method.public' must be float64 of shape {grown.shape}")
        if not bool((public >= 0).all()) or not bool((public.sum((1, 2)) - 1).abs().max() < 1e-6):
            raise DpvalueError("the tensor 'method.public' must be shares, which sum to 1 in each tree")
        return cls(grown, public)
