"""The refit method: each data set releases one description, and v(S) estimates the utility of retraining on S.

For a network, a description holds gradients of the last layer, on the features of the public trunk.

Descriptions are defined in `methods.surrogate`, read in `methods.reading`, and valued in `methods.refitting`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError
from dpvalue.methods.base import Choice, Method
from dpvalue.methods.fits import Rows
from dpvalue.methods.refitting import RefitGame, Refitting
from dpvalue.methods.retraining import PseudoParties, rehearse
from dpvalue.methods.surrogate import LARGEST_MODEL, LEAST_PUBLIC, Surrogate, make_surrogate
from dpvalue.methods.table import ReleaseTable
from dpvalue.models import DescriptionModel, HeadOnTrunk, Linear, Model, Network, find_head, head_on_trunk
from dpvalue.models.build import train
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.situation import Agreement, Situation
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.projection import Basis, Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import Description, Statistic
from dpvalue.streams import Purpose, stream

_STEPS = (16, 64, 256)

_FOLDS = 5


def make_head(model: Network, initial: Tensor, public: PublicSet, seed: int) -> HeadOnTrunk:
    """Return the head of a network on a trunk that is trained on public rows.

    The number of steps minimises the loss on a held-out fifth of the rows; training then uses all rows.

    Formal guarantee: reads public rows only.

    Args:
        model: the network; it must have a head (`models.find_head`).
        initial: the initial parameters (size,).
        public: the public rows.
        seed: seed of the order and the held-out fifth.
    """
    head = find_head(model, public.x[0])
    x, y = model.inputs(public.x), model.targets(public.y)
    order = stream(seed, Purpose.REFIT, 1).permutation(len(x))
    left_out = torch.from_numpy(order % _FOLDS == 0).to(x.device)
    stages = train(model, initial, x[~left_out], y[~left_out], _STEPS, seed)
    losses = model.mean_loss(x[left_out], y[left_out])(torch.stack(stages)).cpu().numpy()
    steps = _STEPS[int(np.nan_to_num(losses, nan=np.inf).argmin())]
    trained = train(model, initial, x, y, [steps], seed)[0]
    if not bool(trained.isfinite().all()):
        raise DpvalueError("training the network on the public rows diverged: scale the features, or use game='steps'")
    return HeadOnTrunk.of(model, head, trained, public.x)


_LARGEST_FEATURE = 1e4  # in standard deviations, for scaled features

_LARGEST = 10**8

_GROWTH = 1.1  # ratio of successive sizes that have a window

_CURVES = 0
"""The seed of learning curves, which depend on public rows only."""


@dataclass(frozen=True, eq=False)
class Refit(Method):
    """Parties release descriptions of data sets; v(S) estimates the utility of retraining on S.

    Args:
        surrogate: the public side of the descriptions.
        trunk: public parameters of a network below its head (`models.HeadOnTrunk`); None for a linear model.
    """

    name: ClassVar[str] = "refit"
    game_name: ClassVar[str] = "refit game"
    summary: ClassVar[str] = (
        "released a description: what is valued is what retraining on a coalition's data would give, the refit game"
    )
    one_release: ClassVar[bool] = True
    fits_coalitions: ClassVar[bool] = True

    surrogate: Surrogate
    trunk: Tensor | None = None

    @property
    def projection(self) -> Projection:
        """The directions of descriptions."""
        return Projection(len(self.surrogate.vectors), "refit")

    @property
    def statistic(self) -> Statistic:
        """The description of a unit."""
        return Description(self.surrogate.distance)

    @classmethod
    def unmet_requirement(cls, situation: Situation) -> str:
        """Return the requirement that the situation does not meet; empty if there is none.

        Formal guarantee: reads public rows only.
        """
        settings, model = situation.settings, situation.model
        if isinstance(model, Linear):
            size, models = model.size, "models"
        else:
            try:
                size, models = find_head(model, situation.public.x[0]).size, "heads of networks"
            except DpvalueError as error:
                return str(error)
        requirements = {
            f"is for {models} of up to {LARGEST_MODEL} parameters": size <= LARGEST_MODEL,
            f"needs at least {LEAST_PUBLIC} public rows": len(situation.public.x) >= LEAST_PUBLIC,
            "needs Gaussian noise (delta above 0)": settings.privacy is None or settings.privacy.vector_law is not None,
            "needs accounting='composition'": settings.privacy is None or settings.privacy.accounting == "composition",
            "needs scaled features: these are too large": float(situation.public.x.abs().max()) < _LARGEST_FEATURE,
        }
        return next((reason for reason, holds in requirements.items() if not holds), "")

    @classmethod
    def require_budget(cls, privacy: Privacy, auc: float | None) -> None:
        """Raise if the budget rules out Gaussian noise, or a target AUC is given."""
        if auc is not None:
            raise DpvalueError("auc needs game='steps': the refit game is planned by its agreement with retraining")
        if privacy.vector_law is None or privacy.accounting != "composition":
            raise DpvalueError("game='refit' needs Gaussian noise (delta above 0) and accounting='composition'")

    @classmethod
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Return all choices of the single release: directions, windows and noise."""
        settings, privacy = situation.settings, situation.settings.privacy
        model = _head(situation)
        law = "gaussian" if privacy is None else privacy.vector_law
        assert law is not None
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(1, situation.n, law)
        unit, neighbours = ("record", "zero_out") if privacy is None else (privacy.unit, privacy.neighbours)
        mechanism = Mechanism(1.0, multiplier, unit, neighbours, law)
        noise = mechanism.noise_std(torch.from_numpy(situation.units)).numpy()
        unit_counts = situation.sizes if privacy is None else situation.averaged_units(unit)
        surrogate = make_surrogate(model, situation.public, unit_counts, noise, settings.seed, unit == "party")
        surrogate = surrogate.rounded(situation.initial.dtype)
        description = surrogate.description_model(model, situation.initial)
        basis = Basis(
            surrogate.origin.to(situation.initial),
            surrogate.vectors.to(situation.initial),
            surrogate.weights().to(situation.initial)[None],
            situation.initial.new_ones(1),
        )
        return Choice(
            method=Refit(surrogate, model.trunk if isinstance(model, HeadOnTrunk) else None),
            model=description,
            initial=situation.initial.new_zeros(description.size),
            basis=basis,
            schedule=Schedule("replay", rounds=1, probes=1),
            releases=1,
            mechanism=mechanism,
            learning_rate=1.0,
            guarantee=guarantee(privacy, multiplier, 1, 1.0, settings.noise == "fast", law, settings.ledger_terms),
        )

    def expectation(self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Agreement:
        """Return the expected agreement of values with retraining, and which parties are too small."""
        head, unit = head_of(choice), choice.mechanism.unit
        featured = replace(situation.public, x=head.inputs(situation.public.x)[:, :-1])
        noise = choice.mechanism.noise_std(torch.from_numpy(situation.units)).numpy()
        pseudo = PseudoParties(situation.averaged_units(unit), noise, unit == "party")
        settings = situation.settings
        return rehearse(head.on_features(), featured, pseudo, self.surrogate, settings.engine, settings.seed)

    def choice_by_size(self, situation: Situation, choice: Choice) -> tuple[Choice, Ints]:
        """Return the choice for stand-ins of all sizes: the window of a party depends on its size.

        The directions do not depend on sizes. For the sizes of the plan, the windows are those of the plan.
        """
        assert choice.basis is not None
        mechanism = choice.mechanism
        grown = np.unique(np.rint(_GROWTH ** np.arange(0, np.log(_LARGEST) / np.log(_GROWTH))).astype(np.int64))
        sizes = np.unique(np.concatenate([[0], grown, situation.averaged_units(mechanism.unit)]))
        noise = mechanism.noise_std(torch.from_numpy(sizes)).numpy()
        whole = mechanism.unit == "party"
        wide = make_surrogate(head_of(choice), situation.public, sizes, noise, situation.settings.seed, whole)
        wide = wide.rounded(situation.initial.dtype)
        starts = np.flatnonzero(np.concatenate([[True], np.diff(wide.window_indices) != 0]))
        wide = replace(wide, window_indices=wide.window_indices[starts])
        basis = replace(choice.basis, points=wide.weights().to(situation.initial)[None])
        return replace(choice, method=replace(self, surrogate=wide), basis=basis), sizes[starts]

    def for_parties(self, ranges: Ints) -> Self:
        """Return the method for parties in these ranges of sizes (n,)."""
        return replace(self, surrogate=replace(self.surrogate, window_indices=self.surrogate.window_indices[ranges]))

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> RefitGame:
        """Return the game of the table's descriptions."""
        model = table.whole_model(engine)
        if not isinstance(model, Linear):
            raise DpvalueError("the refit game is for linear and logistic regression, or a network's head on a trunk")
        # Not the table's seed, which depends on the rows in a simulation: all tables of a job share the curves.
        refitting = Refitting(self.surrogate, Rows.of(model, public), Evaluator(public, model, engine), _CURVES)
        rows = table.rows.to(engine.torch_device, engine.torch_dtype)
        return RefitGame(refitting, rows, table.noise_std, table.sizes)

    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> RefitGame:
        """Return the game of stand-ins with these descriptions and the sizes of the first parties."""
        model, count = head_of(choice), len(rows)
        evaluate = Evaluator(situation.public, model, situation.settings.engine)
        refitting = Refitting(self.surrogate, Rows.of(model, situation.public), evaluate, situation.settings.seed)
        return RefitGame(refitting, rows, np.full(count, 1.0), np.maximum(situation.sizes[:count], 1))

    def complete(self, model: Model, example_row: Tensor) -> Model:
        """Return the head on the trunk of a network."""
        return model if self.trunk is None else head_on_trunk(model, example_row, self.trunk)

    def digest(self, model: Model, example_row: Tensor) -> str:
        """Return the digest of the descriptions at the model."""
        return (
            self.surrogate.description_model(model, example_row).digest()
            if isinstance(model, Linear)
            else model.digest()
        )

    def tensors(self) -> Tensors:
        """Return surrogate and trunk for a file."""
        return self.surrogate.tensors() | ({} if self.trunk is None else {"trunk": self.trunk})

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return the method of a file."""
        if basis is None:
            raise DpvalueError("the refit game needs a basis: the directions of the descriptions")
        trunk = tensors.get("trunk")
        if trunk is not None and (trunk.dim() != 1 or not trunk.is_floating_point() or not len(trunk)):
            raise DpvalueError("the tensor 'trunk' must be floating point numbers in 1 dimension")
        return cls(Surrogate.from_tensors(origin, basis, tensors), trunk)

    def require_parties(self, n: int) -> None:
        """Raise unless each of n parties has a window."""
        if len(self.surrogate.window_indices) != n:
            raise DpvalueError(f"the tensor 'method.chosen' must be a whole number for each of {n} parties")


def head_of(choice: Choice) -> Linear:
    """Return the refitted model: the linear model itself, or a network's last layer on a public trunk."""
    assert isinstance(choice.model, DescriptionModel)
    return choice.model.linear


def _head(situation: Situation) -> Linear:
    """The refitted model: the linear model of the settings, or the head of their network on a public trunk."""
    if isinstance(situation.model, Linear):
        return situation.model
    assert isinstance(situation.model, Network)
    return make_head(situation.model, situation.initial, situation.public, situation.settings.seed)
