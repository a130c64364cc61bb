"""The refit method: each data set describes itself once, and v(S) is what retraining on S would give.

What a party's records are described by is then the gradient of the network's last layer, on features that the trunk
makes of them.

What is asked is in `methods.surrogate`, how an answer is read in `methods.reading`, the game in `methods.refitting`.
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

    For how long is what gives the least loss on a fifth of the rows that was left out; then all of them are trained on.

    Formal guarantee: reads public rows only.

    Args:
        model: the network; raises if it has no head (`models.find_head`).
        initial: where training starts (size,).
        public: the public rows.
        seed: of their order, and of which are left out.
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


_LARGEST_FEATURE = 1e4  # of standard deviations, if they are scaled

_LARGEST = 10**8

_GROWTH = 1.1  # from one size to the next for which a window is chosen

_CURVES = 0
"""The seed of learning curves, which are functions of public rows alone."""


@dataclass(frozen=True, eq=False)
class Refit(Method):
    """Descriptions of data sets are released; v(S) is the utility of the model that retraining on S would give.

    Args:
        surrogate: the public side of a description.
        trunk: of a network whose head is refitted, the public numbers of all that comes before (`models.HeadOnTrunk`).
    """

    name: ClassVar[str] = "refit"
    game_name: ClassVar[str] = "refit game"
    words: ClassVar[str] = (
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
        """A unit's description."""
        return Description(self.surrogate.distance)

    @classmethod
    def lacking(cls, at: Situation) -> str:
        """Return what descriptions need and do not have here.

        Formal guarantee: reads public rows only.
        """
        settings, model = at.settings, at.model
        if isinstance(model, Linear):
            size, models = model.size, "models"
        else:
            try:
                size, models = find_head(model, at.public.x[0]).size, "heads of networks"
            except DpvalueError as error:
                return str(error)
        needed = {
            f"is for {models} of up to {LARGEST_MODEL} parameters": size <= LARGEST_MODEL,
            f"needs at least {LEAST_PUBLIC} public rows": len(at.public.x) >= LEAST_PUBLIC,
            "needs Gaussian noise (delta above 0)": settings.privacy is None or settings.privacy.vector_law is not None,
            "needs accounting='composition'": settings.privacy is None or settings.privacy.accounting == "composition",
            "needs scaled features: these are too large": float(at.public.x.abs().max()) < _LARGEST_FEATURE,
        }
        return next((reason for reason, holds in needed.items() if not holds), "")

    @classmethod
    def require_budget(cls, privacy: Privacy, auc: float | None) -> None:
        """Raise where there is no Gaussian noise, or an AUC is asked for."""
        if auc is not None:
            raise DpvalueError("auc needs game='steps': the refit game is planned by its agreement with retraining")
        if privacy.vector_law is None or privacy.accounting != "composition":
            raise DpvalueError("game='refit' needs Gaussian noise (delta above 0) and accounting='composition'")

    @classmethod
    def choose(cls, at: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        """Decide everything about the one release: directions, windows and noise."""
        settings, privacy = at.settings, at.settings.privacy
        model = _head(at)
        law = "gaussian" if privacy is None else privacy.vector_law
        assert law is not None
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(1, at.n, law)
        unit, neighbours = ("record", "zero_out") if privacy is None else (privacy.unit, privacy.neighbours)
        mechanism = Mechanism(1.0, multiplier, unit, neighbours, law)
        noise = mechanism.noise_std(torch.from_numpy(at.units)).numpy()
        counted = at.sizes if privacy is None else at.averaged_units(unit)
        surrogate = make_surrogate(model, at.public, counted, noise, settings.seed, unit == "party")
        surrogate = surrogate.rounded(at.initial.dtype)
        described = surrogate.described(model, at.initial)
        basis = Basis(
            surrogate.origin.to(at.initial),
            surrogate.vectors.to(at.initial),
            surrogate.weights().to(at.initial)[None],
            at.initial.new_ones(1),
        )
        return Choice(
            method=Refit(surrogate, model.trunk if isinstance(model, HeadOnTrunk) else None),
            model=described,
            initial=at.initial.new_zeros(described.size),
            basis=basis,
            schedule=Schedule("replay", rounds=1, probes=1),
            releases=1,
            mechanism=mechanism,
            learning_rate=1.0,
            spent=guarantee(privacy, multiplier, 1, 1.0, settings.noise == "fast", law, settings.ledger_terms),
        )

    def expected(self, at: Situation, choice: Choice, rehearsal: Rehearsal | None) -> Agreement:
        """Return how well values are expected to agree with retraining, and which parties are too small."""
        head, unit = head_of(choice), choice.mechanism.unit
        featured = replace(at.public, x=head.inputs(at.public.x)[:, :-1])
        noise = choice.mechanism.noise_std(torch.from_numpy(at.units)).numpy()
        made = PseudoParties(at.averaged_units(unit), noise, unit == "party")
        settings = at.settings
        return rehearse(head.on_features(), featured, made, self.surrogate, settings.engine, settings.seed)

    def by_size(self, at: Situation, choice: Choice) -> tuple[Choice, Ints]:
        """Return the choice for stand-ins of all sizes: a party is asked by its size.

        The directions do not depend on sizes: what is chosen here for the sizes of the plan is what the plan has.
        """
        assert choice.basis is not None
        mechanism = choice.mechanism
        grown = np.unique(np.rint(_GROWTH ** np.arange(0, np.log(_LARGEST) / np.log(_GROWTH))).astype(np.int64))
        sizes = np.unique(np.concatenate([[0], grown, at.averaged_units(mechanism.unit)]))
        noise = mechanism.noise_std(torch.from_numpy(sizes)).numpy()
        whole = mechanism.unit == "party"
        wide = make_surrogate(head_of(choice), at.public, sizes, noise, at.settings.seed, whole)
        wide = wide.rounded(at.initial.dtype)
        starts = np.flatnonzero(np.concatenate([[True], np.diff(wide.chosen) != 0]))
        wide = replace(wide, chosen=wide.chosen[starts])
        basis = replace(choice.basis, points=wide.weights().to(at.initial)[None])
        return replace(choice, method=replace(self, surrogate=wide), basis=basis), sizes[starts]

    def for_parties(self, ranges: Ints) -> Self:
        """Return the method for parties of these ranges of sizes."""
        return replace(self, surrogate=replace(self.surrogate, chosen=self.surrogate.chosen[ranges]))

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> RefitGame:
        """Return the game of the table's descriptions."""
        model = table.whole_model(engine)
        if not isinstance(model, Linear):
            raise DpvalueError("the refit game is for linear and logistic regression, or a network's head on a trunk")
        # Not the table's seed, which a simulation has from its rows: curves are the same for every table of a job.
        refitting = Refitting(self.surrogate, Rows.of(model, public), Evaluator(public, model, engine), _CURVES)
        rows = table.rows.to(engine.torch_device, engine.torch_dtype)
        return RefitGame(refitting, rows, table.noise_std, table.sizes)

    def stand_ins(self, at: Situation, choice: Choice, rows: Tensor) -> RefitGame:
        """Return the game of parties with these descriptions, of the first sizes."""
        model, few = head_of(choice), len(rows)
        evaluate = Evaluator(at.public, model, at.settings.engine)
        refitting = Refitting(self.surrogate, Rows.of(model, at.public), evaluate, at.settings.seed)
        return RefitGame(refitting, rows, np.full(few, 1.0), np.maximum(at.sizes[:few], 1))

    def completed(self, model: Model, like: Tensor) -> Model:
        """Return the head on the trunk of a network."""
        return model if self.trunk is None else head_on_trunk(model, like, self.trunk)

    def digest(self, model: Model, like: Tensor) -> str:
        """Return the digest of descriptions by that model."""
        return self.surrogate.described(model, like).digest() if isinstance(model, Linear) else model.digest()

    def tensors(self) -> Tensors:
        """Return surrogate and trunk for a file."""
        return self.surrogate.tensors() | ({} if self.trunk is None else {"trunk": self.trunk})

    @classmethod
    def of_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        """Return what a file describes."""
        if basis is None:
            raise DpvalueError("the refit game needs a basis: the directions of the descriptions")
        trunk = tensors.get("trunk")
        if trunk is not None and (trunk.dim() != 1 or not trunk.is_floating_point() or not len(trunk)):
            raise DpvalueError("the tensor 'trunk' must be floating point numbers in 1 dimension")
        return cls(Surrogate.from_tensors(origin, basis, tensors), trunk)

    def require_parties(self, n: int) -> None:
        """Raise unless each of n parties has a window."""
        if len(self.surrogate.chosen) != n:
            raise DpvalueError(f"the tensor 'method.chosen' must be a whole number for each of {n} parties")


def head_of(choice: Choice) -> Linear:
    """Return what is refitted: the linear model itself, or a network's last layer on a public trunk."""
    assert isinstance(choice.model, DescriptionModel)
    return choice.model.linear


def _head(at: Situation) -> Linear:
    """The linear model that is refitted: that of the settings, or the head of their network on a public trunk."""
    if isinstance(at.model, Linear):
        return at.model
    assert isinstance(at.model, Network)
    return make_head(at.model, at.initial, at.public, at.settings.seed)
