"""Trying to break a claim: plant a canary, watch every release, and see how well its presence can be told.

The attacker is the strongest that the guarantee speaks of: it knows all data but the canary's presence, every setting,
and the whole transcript of releases, and scores it by the likelihood ratio along the direction in which the two worlds
differ. Many runs of both worlds give a lower bound on epsilon (`dpvalue.auditing.findings`): above the claim, it
proves a fault; below, it proves nothing but that this attack did not succeed.

Every party holds a canary, and each is a trial. At models that stand still a release is a contribution, of the party
alone, plus noise of its own: trials are independent. At models that move, the contribution of a canary that is a whole
party is still bounded, so that of a sound mechanism its score is at most that of a contribution at the bound
throughout; other records of a party would move with the models too, so there models must stand still.

Next to the bound stand things that need no threshold: how far one canary moves what all parties would release, whether
any public setting depends on a canary, whether noise is shared between parties, rounds or runs, and whether a question
asked twice through a ledger is answered by the same bytes.
"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from math import inf, isfinite, sqrt
from pathlib import Path
from typing import Any, Unpack

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.auditing.canaries import Worlds, make_worlds
from dpvalue.auditing.findings import Audit, epsilon_bound, mu_bound
from dpvalue.data.parties import counts_of
from dpvalue.data.utility import as_utility
from dpvalue.errors import DpvalueError, require_count, require_number
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.privacy import accounting
from dpvalue.privacy.laws import law_named
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import Progress, reporting, silent
from dpvalue.runs.run import Run
from dpvalue.streams import Purpose, stream

STILL = 1e-9
_COMPARED_RUNS = 30


@shows_settings(EntryKeywords, learning_rate=STILL)
def audit(
    parties: Any,
    utility: Any,
    settings: Settings | None = None,
    *,
    records: int = 1,
    runs: int = 1000,
    confidence: float = 1 - 1e-4,
    progress: bool | Progress = True,
    **given: Unpack[EntryKeywords],
) -> Audit:
    """Return how much of a configuration's claim an attack on planted canaries can refute.

    Formal guarantee: reads no private row; of parties their number and sizes. For a sound mechanism the bound exceeds
    the epsilon really spent with probability at most 1 - confidence.

    Args:
        parties: their number, or the parties as in `dpvalue.value`; cost grows with number x permutations x runs.
        utility: the public set.
        settings: as in `dpvalue.value`, but for the learning rate: by default it is the attacker's choice, so small
            that models stand still and the canary saturates every release. Anything larger is for unit "party" alone.
        records: records per party, when `parties` is a number.
        runs: runs of each world; each gives as many trials as there are canaries, one a party.
        confidence: of the bound.
        progress: show a bar on a terminal; or a callable (stage, done, total).
        **given: fields of `Settings`, which change `settings`; target, groups and persons as in `dpvalue.value`.

    Returns:
        the bound on epsilon, and what else was checked.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.

    Example:
        >>> found = dpv.audit(20, test, runs=5, noise="fast", progress=False)  # `test` as in `dpvalue.Result`
        >>> found.bound <= found.claim
        True
    """
    asked, labels = read_keywords(settings, given, learning_rate=STILL)
    privacy = asked.privacy
    if privacy is None:
        raise DpvalueError("privacy must be a Privacy, got None: without one there is no claim to audit")
    asked.require_no_keeper("an audit")
    require_count("runs", runs)
    if privacy.unit != "party" and asked.learning_rate != STILL:
        raise DpvalueError(f"learning_rate must be left as it is for unit={privacy.unit!r}: see the module's text")
    require_number("confidence", confidence, "between 0.5 and 1", 0.5 <= confidence < 1)
    public = as_utility(utility, *labels)
    sizes, units = counts_of(parties, privacy, records, *labels, public)
    with asked.engine.threading(), reporting(progress) as tell:
        worlds = make_worlds(public, asked, sizes, units)
        return _audit(worlds, runs, confidence, tell)


def _audit(worlds: Worlds, runs: int, confidence: float, progress: Progress) -> Audit:
    run = worlds.present
    spent, choice = run.choice.guarantee, run.choice
    assert spent.delta is not None
    attacker = _Attacker(worlds)
    with_, without = [], []
    progress("auditing", 0, runs)
    for number in range(runs):
        with_.append(attacker.scores(worlds.present, 2 * number))
        without.append(attacker.scores(worlds.absent, 2 * number + 1))
        progress("auditing", number + 1, runs)
    present, absent = np.concatenate(with_), np.concatenate(without)
    alpha = 1 - confidence
    each = alpha if spent.mu is None else alpha / 2
    by_rates, by_mu = epsilon_bound(present, absent, spent.delta, each), None
    if spent.mu is not None:
        mu = mu_bound(present, absent, each)
        by_mu = accounting.epsilon_of_mu(mu, spent.delta) if mu > 0 else 0.0
    return Audit(
        guarantee=spent,
        bound=max(by_rates, by_mu or 0.0),
        bound_by_rates=by_rates,
        bound_by_mu=by_mu,
        moved=_moved(worlds),
        leaking=_differences(worlds),
        shared_noise=attacker.shared_noise(),
        same_bytes=_retry(run),
        trials=len(present),
        confidence=confidence,
        schedule=choice.schedule,
        projection=choice.projection,
    )


class _Attacker:
    """Scores canaries by the likelihood ratio of the two worlds, with what each would release at the start."""

    def __init__(self, worlds: Worlds) -> None:
        run = worlds.present
        self._law, self._seed, self._kind = law_named(run.choice.guarantee.law), run.settings.seed, run.settings.noise
        self._with, self._without = _before_noise(worlds.present), _before_noise(worlds.absent)
        self._scale = (run.choice.mechanism.scale.gain * run.contributions.release_scale).to(self._with).unsqueeze(-1)
        self._canary_of = worlds.canary_of
        stands_still = run.choice.learning_rate == STILL and not run.choice.schedule.fresh_start
        self._noise: list[Tensor] | None = [] if stands_still else None

    def scores(self, run: Run, number: int) -> Floats:
        """Make the releases of a run once more, with fresh noise, and return the score of each canary."""
        total = self._with.new_zeros(len(self._with))
        transcript: list[list[Tensor]] = [[] for _ in total]
        expected = self._with if number % 2 == 0 else self._without
        keeping = self._noise is not None and number < 2 * _COMPARED_RUNS

        def watch(who: Tensor, releases: Tensor) -> None:
            parties, flat = who.flatten(), releases.reshape(who.numel(), -1).to(self._with)
            total.index_add_(0, parties, self._ratios(parties, flat))
            if keeping:
                noise = (flat - expected[parties]) / self._scale[parties]
                for party, drawn in zip(parties.tolist(), noise, strict=True):
                    transcript[party].append(drawn)

        noise = run.noise
        if self._kind == "fast":
            own = int(stream(self._seed, Purpose.AUDIT, number).integers(2**62))
            noise = noise_source("fast", own, Purpose.AUDIT)
        replace(run, noise=noise, witness=watch).release(silent)
        if keeping and self._noise is not None:
            self._noise.append(torch.stack([torch.stack(rounds) for rounds in transcript], dim=1))
        held = self._canary_of >= 0
        return np.bincount(self._canary_of[held], weights=total.cpu().numpy()[held]).astype(np.float64)

    def shared_noise(self) -> float | None:
        """The largest correlation of noise between parties, or between rounds and runs; 0 if there is none to speak of.

        Noise in units of its scale (releases, parties, d): z_a . z_b / d is 0 on average for any two that are
        independent, so the mean over pairs is 0 but for its standard error.
        """
        if self._noise is None:
            return None
        noise = torch.cat(self._noise)
        noise = noise / noise.square().mean().sqrt()
        correlations = [0.0]
        for grouped in (noise, noise.transpose(0, 1)):  # pairs of parties in one release, then of releases of one party
            sets, count, size = grouped.shape
            pairs = grouped.sum(1).square().sum(-1) - grouped.square().sum((1, 2))
            mean = float(pairs.mean()) / (count * (count - 1) * size)
            error = sqrt(2 / (sets * count * (count - 1) * size))
            if mean > max(0.1, 6 * error):
                correlations.append(mean)
        return max(correlations)

    def _ratios(self, who: Tensor, releases: Tensor) -> Tensor:
        """The log-likelihood ratios of releases, if contributions stay as they are at the start."""
        with_, without, scale = self._with[who], self._without[who], self._scale[who]
        return self._law.log_ratio(releases, with_, without, scale).sum(-1)


def _moved(worlds: Worlds) -> float:
    """How far one canary moves what all parties would release first, over the claimed sensitivity."""
    run = worlds.one_canary
    sensitivity = run.choice.mechanism.scale.gain * run.choice.mechanism.sensitivity(run.contributions.units.cpu())
    apart = torch.linalg.vector_norm(_before_noise(worlds.one_canary) - _before_noise(worlds.no_canary), dim=-1).cpu()
    moved = float(torch.linalg.vector_norm(apart / sensitivity)) / sqrt(run.choice.guarantee.parties_per_person)
    return moved if isfinite(moved) else inf  # what is not a number is told apart from every number


def _before_noise(run: Run) -> Tensor:
    """What all parties would release first, without noise (n, d), in float64."""
    contributions, choice = run.contributions, run.choice
    grid = contributions.grid()
    everyone = torch.arange(contributions.n, device=choice.initial.device)
    clipped = contributions.along(choice.points, choice.shares, everyone, grid)
    return contributions.release(clipped, torch.zeros_like(clipped), everyone, grid).to(torch.float64)


def _differences(worlds: Worlds) -> tuple[str, ...]:
    """The names of public things that are not the same in both worlds."""
    present, absent = worlds.present, worlds.absent
    pairs: dict[str, tuple[Any, Any]] = {
        name: (getattr(present.choice, name), getattr(absent.choice, name))
        for name in ("mechanism", "learning_rate", "projection", "schedule", "releases", "guarantee", "expected_auc")
    }
    pairs["names"] = present.names, absent.names
    pairs["classes"] = present.encoding.classes, absent.encoding.classes
    differing = [name for name, (here, there) in pairs.items() if here != there]
    tensors = {
        "initial model": (present.choice.initial, absent.choice.initial),
        "points": (present.choice.points, absent.choice.points),
        "public features": (present.evaluate.public.x, absent.evaluate.public.x),
    }
    if present.choice.basis is not None and absent.choice.basis is not None:
        tensors["basis"] = present.choice.basis.vectors, absent.choice.basis.vectors
    return tuple(differing + [name for name, (here, there) in tensors.items() if not torch.equal(here, there)])


def _retry(run: Run) -> bool | None:
    """Whether a question that is asked twice through a ledger gets the same answer."""
    settings, privacy = run.settings, run.settings.privacy
    if privacy is None or settings.noise != "secure" or privacy.accounting != "composition":
        return None
    with tempfile.TemporaryDirectory() as folder:
        parties = run.holding.parties if privacy.unit == "party" else None
        person = run.holding.person if privacy.unit == "person" else None
        ledger = Ledger.create(Path(folder) / "audit.ledger", privacy, "audit", parties=parties, person=person)
        charged = run.with_keeper(ledger)
        first, second = (charged.release(silent)[0].rows for _ in range(2))
    return torch.equal(first, second)
