"""What choices are made from, and the ways to release that settings and a budget leave open."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.models import Model
from dpvalue.planning.expectation import Expectation, expect
from dpvalue.planning.rehearsal import Option, Rehearsal, prefer
from dpvalue.planning.settings import Settings
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.laws import law_named
from dpvalue.privacy.mechanism import Mechanism, make_mechanism


@dataclass(frozen=True)
class Situation:
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

    @property
    def has_sets(self) -> bool:
        """Whether some party is a data set of several rows."""
        return int(self.sizes.max(initial=0)) > 1

    def averaged_units(self, unit: str) -> Ints:
        """Return the number of units of each party whose statistics are averaged; a whole party is its records."""
        return self.sizes if unit == "party" else self.units

    def rehearsal(self) -> Rehearsal:
        """Return the public set, ready to try ways to release on."""
        engine, seed = self.settings.engine, self.settings.seed
        return Rehearsal(self.model, self.initial, self.public, self.sizes, self.units, engine, seed)


def expected_at(at: Situation, privacy: Privacy, rehearsal: Rehearsal) -> Expectation:
    """Return what is expected of the best way to release at a budget."""
    return expect(rehearsal, prefer(options(at, privacy, rehearsal), at.model.size)[1])


def options(at: Situation, privacy: Privacy, rehearsal: Rehearsal) -> list[Option]:
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
