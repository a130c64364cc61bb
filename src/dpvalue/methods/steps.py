"""Every setting that was left open, decided: from the public set, the budget and the parties' public sizes alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.metrics import LOSS
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import PublicSet
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError
from dpvalue.methods.surrogate import LARGEST_MODEL, LEAST_PUBLIC, Surrogate, make_surrogate
from dpvalue.methods.trunks import make_head
from dpvalue.models import Described, Headed, Linear, Model, Network, Projected, Score, find_head, projected
from dpvalue.planning.expectation import Expectation, expect
from dpvalue.planning.folds import STEPS
from dpvalue.planning.learning_rate import PublicTuner
from dpvalue.planning.rehearsal import Option, Rehearsal, prefer
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Guarantee, Privacy, guarantee
from dpvalue.privacy.laws import law_named
from dpvalue.privacy.mechanism import Mechanism, Scale, make_mechanism
from dpvalue.releasing.contributions import Contributions
from dpvalue.releasing.job import Statistic
from dpvalue.releasing.projection import Basis, Projection, make_basis
from dpvalue.releasing.schedule import Schedule

_DISTANCES = tuple(10 ** (exponent / 8) for exponent in range(-24, 25))  # a thousandth to a thousand
_MOST_ROWS = 256
_LARGEST_FEATURE = 1e4  # of standard deviations, if they are scaled


@dataclass(frozen=True)
class Setting:
    """What a choice may depend on, all of it public; `sizes` and `units` are the parties' rows and protected units."""

    model: Model
    initial: Tensor
    public: PublicSet
    sizes: Ints
    units: Ints
    settings: Settings

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.sizes)

    def rehearsal(self) -> Rehearsal:
        """Return the public set, ready to try ways to release on."""
        engine, seed = self.settings.engine, self.settings.seed
        return Rehearsal(self.model, self.initial, self.public, self.sizes, self.units, engine, seed)


@dataclass(frozen=True)
class Choice:
    """How a run is made, with every setting decided.

    Attributes:
        model: what walks: the model itself, or the model moved along the basis.
        initial: where it starts.
        basis: the public directions; None for all.
        projection: what the basis was made by.
        schedule: when parties release.
        releases: noisy messages per party.
        mechanism: clipping and noise of each.
        learning_rate: alpha.
        spent: the guarantee.
        expected: how well corrupted parties are expected to be found, by rehearsal on the public set; None if nothing
            was left to choose.
        surrogate: the public side of the refit game; None for others.
        lacking: why data sets do not play the refit game, where "auto" would have; else empty.
    """

    model: Model
    initial: Tensor
    basis: Basis | None
    projection: Projection | None
    schedule: Schedule
    releases: int
    mechanism: Mechanism
    learning_rate: float
    spent: Guarantee
    expected: Expectation | None = None
    surrogate: Surrogate | None = None
    lacking: str = ""

    @property
    def expected_auc(self) -> float | None:
        """How well corrupted parties are expected to be found, where that was rehearsed."""
        return None if self.expected is None else self.expected.auc

    @property
    def statistic(self) -> Statistic:
        """What a unit contributes."""
        if self.surrogate is not None:
            return Statistic("description", self.surrogate.distance)
        return Statistic("score" if self.projection is not None and self.projection.is_score else "gradient")

    @property
    def head(self) -> Linear:
        """What the refit game fits: the linear model itself, or a network's last layer on a public trunk."""
        assert isinstance(self.model, Described)
        return self.model.linear

    @property
    def trunk(self) -> Tensor | None:
        """The public numbers of the trunk that a network's head stands on; None for all other models."""
        head = None if self.surrogate is None else self.head
        return head.trunk if isinstance(head, Headed) else None

    @property
    def asked(self) -> Model:
        """What rows are asked through: the model that walks, or one whose gradients are scores."""
        if self.projection is None or not self.projection.is_score:
            return self.model
        assert isinstance(self.model, Projected)
        return Score(self.model)

    @property
    def points(self) -> Tensor:
        """Where the first release is taken (q, size); (q, n, size) if each party is asked at points of its own."""
        return self.initial[None] if self.basis is None else self.basis.points

    def points_for(self, count: int) -> Tensor:
        """Return the points that so many stand-ins for parties are asked at."""
        if self.points.dim() == 2:
            return self.points
        return self.points[:, torch.arange(count, device=self.points.device) % self.points.shape[1]]

    @property
    def shares(self) -> Tensor:
        """The weights (q,) of these points."""
        return self.initial.new_ones(1) if self.basis is None else self.basis.shares


def choose(at: Setting, rehearsal: Rehearsal | None = None) -> Choice:
    """Decide everything that the settings leave open.

    Formal guarantee: reads the public set, the settings and the parties' public sizes only.
    """
    settings = at.settings
    if plays_refit(at):
        return _choose_refit(at)
    privacy, clip = settings.privacy, None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    expected = None
    if privacy is None:
        projection = _longest(settings.fixed_projection, at.model)
        law, scale = "gaussian", _zero_of(projection, at)
    elif settings.is_fixed and privacy.vector_law is not None:
        projection, law, scale = None, privacy.vector_law, Scale()
    else:
        rehearsal = rehearsal or at.rehearsal()
        option, elsewhere = prefer(options(at, privacy, rehearsal), at.model.size)
        expected = expect(rehearsal, elsewhere)
        projection, law, scale = option.projection, option.law, option.scale
        clip, rule = option.clip, option.rule

    model, initial, basis = at.model, at.initial, None
    if projection is not None:
        rows = model.inputs(at.public.x), model.targets(at.public.y)
        basis = make_basis(projection, model, initial, *rows, settings.seed)
        model = projected(model, basis.origin, basis.vectors)
        initial = model.initial(settings.seed)
    asked = settings.resolved_schedule
    if settings.schedule is None and projection is not None and projection.is_score:
        asked = Schedule("replay")  # also without privacy
    schedule = _schedule(asked, projection, 1 if basis is None else len(basis.points))
    releases = schedule.releases(settings.permutations)
    multiplier = 0.0 if privacy is None else privacy.noise_multiplier(releases, at.n, law)
    mechanism = make_mechanism(privacy, clip, multiplier, law=law, rule=rule or "flat", scale=scale)
    own = schedule.kind == "independent"
    if projection is not None and projection.is_score:
        rate = 1.0  # scores are added up, and move no model
    elif not isinstance(settings.learning_rate, str):
        rate = float(settings.learning_rate)
    elif basis is not None and len(initial) == 1:
        mixed = 1.0 if own else float(np.linalg.norm(schedule.table_weights(settings.permutations)))
        rate = _rate_on_line(at, model, initial, basis, mechanism, mixed)
    else:
        tuner = PublicTuner(model, initial, at.public, at.sizes, at.units, settings.engine, settings.seed)
        rate = tuner.learning_rate(mechanism, own, releases)
    spent = guarantee(privacy, multiplier, releases, clip, settings.noise == "fast", law, settings.ledger_terms)
    why = lacking(at) if settings.may_refit and _are_sets(at) else ""
    return Choice(model, initial, basis, projection, schedule, releases, mechanism, rate, spent, expected, lacking=why)


def plays_refit(at: Setting) -> bool:
    """Return whether the refit game is what these settings ask for; raises where it is asked for and cannot be."""
    settings, missing = at.settings, lacking(at)
    if settings.game == "refit" and missing:
        raise DpvalueError(f"game='refit' {missing}")
    return settings.may_refit and not missing and (settings.game == "refit" or _are_sets(at))


def _are_sets(at: Setting) -> bool:
    return int(at.sizes.max(initial=0)) > 1


def lacking(at: Setting) -> str:
    """Return what the refit game needs and does not have here; empty where it can be played.

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
        "needs features that are scaled: they are too large": float(at.public.x.abs().max()) < _LARGEST_FEATURE,
    }
    return next((reason for reason, holds in needed.items() if not holds), "")


def _choose_refit(at: Setting) -> Choice:
    """Decide everything about the one release of the refit game: directions, windows and noise."""
    settings, privacy = at.settings, at.settings.privacy
    model = _head(at)
    law = "gaussian" if privacy is None else privacy.vector_law
    assert law is not None
    multiplier = 0.0 if privacy is None else privacy.noise_multiplier(1, at.n, law)
    unit, neighbours = ("record", "zero_out") if privacy is None else (privacy.unit, privacy.neighbours)
    mechanism = Mechanism(1.0, multiplier, unit, neighbours, law)
    whole = unit == "party"
    noise = mechanism.noise_std(torch.from_numpy(at.units)).numpy()
    counted = at.sizes if privacy is None else counted_units(at, mechanism)
    surrogate = make_surrogate(model, at.public, counted, noise, settings.seed, whole).rounded(at.initial.dtype)
    described = surrogate.described(model, at.initial)
    basis = Basis(
        surrogate.origin.to(at.initial),
        surrogate.vectors.to(at.initial),
        surrogate.weights().to(at.initial)[None],
        at.initial.new_ones(1),
    )
    schedule = Schedule("replay", rounds=1, probes=1)
    spent = guarantee(privacy, multiplier, 1, 1.0, settings.noise == "fast", law, settings.ledger_terms)
    projection = Projection(len(surrogate.vectors), "refit")
    initial = at.initial.new_zeros(described.size)
    return Choice(described, initial, basis, projection, schedule, 1, mechanism, 1.0, spent, surrogate=surrogate)


def counted_units(at: Setting, mechanism: Mechanism) -> Ints:
    """Return the number of units of each party whose descriptions are averaged; a whole party is its records."""
    return at.sizes if mechanism.unit == "party" else at.units


def _head(at: Setting) -> Linear:
    """The linear model that is refitted: that of the settings, or the head of their network on a public trunk."""
    if isinstance(at.model, Linear):
        return at.model
    assert isinstance(at.model, Network)
    return make_head(at.model, at.initial, at.public, at.settings.seed)


def expected_at(at: Setting, privacy: Privacy, rehearsal: Rehearsal) -> Expectation:
    """Return what is expected of the best way to release at a budget."""
    return expect(rehearsal, prefer(options(at, privacy, rehearsal), at.model.size)[1])


def options(at: Setting, privacy: Privacy, rehearsal: Rehearsal) -> list[Option]:
    """Return the ways to release at a budget that the settings leave open."""
    settings = at.settings
    clip = None if isinstance(settings.clip, str) else float(settings.clip)
    rule = None if settings.clip_rule == "auto" else settings.clip_rule
    fixed = settings.fixed_projection
    given = not settings.free_projection
    if not given:
        candidates = rehearsal.candidates()
    elif fixed is None:
        # Of all directions only what is too long is scaled: the engine walks that far faster.
        candidates, rule = [None], rule or "flat"
    else:
        candidates = [*rehearsal.lengths(fixed)]
    possible = rehearsal.options(candidates, possible_mechanisms(settings, privacy, at.n), clip, rule, given)
    if not possible:
        raise no_laplace(settings, privacy)
    return possible


def no_laplace(settings: Settings, privacy: Privacy) -> DpvalueError:
    """Return the error for a budget that only scalar laws (Laplace) could keep, where they cannot be used."""
    asked = "delta = 0" if privacy.delta == 0 else f"mechanism={privacy.mechanism!r}"
    return DpvalueError(
        f"{asked} needs one release of one number: projection with m = 1 and schedule 'replay' with rounds = 1; "
        f"got projection {settings.projection!r} and schedule {str(settings.resolved_schedule)!r}"
    )


def possible_mechanisms(settings: Settings, privacy: Privacy, n: int) -> list[Mechanism]:
    """Return the mechanisms that budget and schedule allow, with a norm of 1 and the noise of a final row."""
    schedule, permutations = settings.resolved_schedule, settings.permutations
    possible = []
    for law in privacy.laws:
        if not law_named(law).scalar:
            noise = privacy.noise_multiplier(schedule.releases(permutations), n, law)
            noise *= float(np.linalg.norm(schedule.table_weights(permutations)))
            possible.append(make_mechanism(privacy, 1.0, noise, law=law))
        elif schedule.kind == "replay" and schedule.rounds in (None, 1):  # one release
            possible.append(make_mechanism(privacy, 1.0, privacy.noise_multiplier(1, n, law), law=law))
    return possible


def _longest(projection: Projection | None, model: Model) -> Projection | None:
    """Without privacy there is no budget to choose for: a path goes to its end."""
    if projection is not None and projection.leaves_open(model):
        return replace(projection, steps=STEPS[-1])
    return projection


def _zero_of(projection: Projection | None, at: Setting) -> Scale:
    """How scores are read without privacy: less the mean of public rows. Gradients are read as they are."""
    if projection is None or not projection.is_score:
        return Scale()
    clean = [fold[0].score for fold in at.rehearsal().sketches(projection).values()]
    return Scale(level=-float(np.concatenate(clean).mean()))


def _schedule(schedule: Schedule, projection: Projection | None, points: int) -> Schedule:
    """One round for few directions, where a second would cost more than it shows, unless rounds were asked for."""
    one_release = schedule.kind == "replay" and schedule.rounds in (None, 1)
    if projection is not None and projection.is_score and not one_release:
        raise DpvalueError(
            f"projection with source 'loss' is a score of one release: it needs schedule 'replay' with rounds = 1, got "
            f"{str(schedule)!r}"
        )
    if schedule.kind != "replay" or schedule.rounds is not None or projection is None:
        return schedule
    return replace(schedule, rounds=1, probes=schedule.probes or points)


def _rate_on_line(
    at: Setting, model: Model, initial: Tensor, basis: Basis, mechanism: Mechanism, mixed: float
) -> float:
    """Return the rate at which all parties together move the model to where most of what the line offers is reached.

    That is the nearest point with nine tenths of the best fall of the public loss. It is reached if the parties are
    like public rows and their noise adds up to three standard deviations: a walk past the best point would turn the
    signs of late marginals, and far out, where the loss is flat, marginals would vanish.
    """
    public, engine = at.public, at.settings.engine
    unit = _unit_of_length(model, initial, basis, public)
    lengths = torch.tensor([unit * distance for distance in _DISTANCES], dtype=initial.dtype, device=initial.device)
    evaluate = Evaluator(replace(public, metric=LOSS, l2=0.0), model, engine)
    falls = (evaluate(-lengths[:, None]) - evaluate(initial[None])).nan_to_num(0.0, 0.0, 0.0)
    if not float(falls.max()) > 0:
        raise DpvalueError(
            "no step along the public direction lowers the public loss: scale the features (preprocess=)"
        )
    best = float(lengths[int((falls >= 0.9 * falls.max()).nonzero()[0, 0])])
    evenly = slice(None, None, -(-len(public.x) // _MOST_ROWS))
    x, y = public.x[evenly].cpu().numpy(), public.y[evenly].cpu().numpy()
    count = len(x)
    rows = PublicRows.by_party(x, y, np.ones(count, dtype=np.int64), initial.dtype, initial.device)
    alone = Contributions(model, rows, replace(mechanism, unit="party"), engine)
    everyone = torch.arange(count, device=initial.device)
    step = float(mechanism.scale.read(alone.along(basis.points, basis.shares, everyone)).mean())
    std = mixed * mechanism.scale.gain * float(mechanism.noise_std(torch.from_numpy(at.units)).square().mean().sqrt())
    reach = at.n * max(step, 0.0) + 3 * std * at.n**0.5
    return best / reach if reach > 0 else 1.0


def _unit_of_length(model: Model, initial: Tensor, basis: Basis, public: PublicSet) -> float:
    """How far is far on this line: to the end of a path, or until public outputs have changed by about 1."""
    if len(basis.points) > 1:
        return float(basis.points.abs().max())
    step = 1e-3
    outputs = model.outputs(torch.stack([initial, initial - step]), model.inputs(public.x))
    change = float((outputs[1] - outputs[0]).square().mean().sqrt()) / step
    return 1 / change if np.isfinite(change) and change > 0 else 1.0
