"""Privacy audits: an attack that detects planted canaries from all releases, and a lower bound on epsilon.

The attacker is the strongest that the guarantee covers. It knows every setting, all data except the canary's presence,
and all releases, and computes the likelihood ratio of the two worlds, with and without the canary. Many runs of both
worlds give a lower bound on epsilon (`dpvalue.auditing.findings`). A bound above the claim proves a fault; a bound
below it proves only that this attack failed.

Every party has a canary, and each canary is a trial. At fixed models, a release is the party's own contribution plus
its own noise, so trials are independent. At moving models, the contribution of a canary that is a whole party is still
bounded, so for a sound mechanism its score is at most that of a contribution at the bound. Other records of a party
would change with the models, so units "record" and "person" need fixed models.

The audit also checks without a threshold how far one canary moves the releases of all parties, whether any public
setting depends on a canary, whether noise is shared between parties, rounds or runs, and whether a repeated request to
a ledger gets the same bytes.
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
from dpvalue.data.parties import public_counts
from dpvalue.data.utility import as_utility
from dpvalue.errors import DpvalueError, require_count, require_number
from dpvalue.methods.choosing import method_of_settings
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.privacy import accounting
from dpvalue.privacy.laws import find_law
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
    **fields: Unpack[EntryKeywords],
) -> Audit:
    """Audit the privacy claim of a configuration by an attack on planted canaries.

    Formal guarantee: reads no private row, only the number and sizes of parties. For a sound mechanism the bound
    exceeds the epsilon of the guarantee with probability at most 1 - confidence.

    Args:
        parties: the number of parties, or the parties as in `dpvalue.value`; time grows with number x permutations x
            runs.
        utility: the public set.
        settings: as in `dpvalue.value`, except the learning rate: the default is the attacker's choice, so small that
            models are fixed and the canary saturates every release. Larger rates are for unit "party" only.
        records: records per party, if `parties` is a number.
        runs: runs of each world; each has one trial per party.
        confidence: the confidence of the bound.
        progress: show a bar on a terminal; or a callable (stage, done, total).
        **fields: fields of `Settings`, which change `settings`; target, groups and persons as in `dpvalue.value`.

    Returns:
        the bound on epsilon, and what else was checked.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.

    Example:
        >>> found = dpv.audit(20, test, runs=5, noise="fast", progress=False)  # `test` as in `dpvalue.Result`
        >>> found.bound <= found.claim
        True
    """
    run_settings, labels = read_keywords(settings, fields)
    moves = not method_of_settings(run_settings).one_release
    if moves:
        run_settings, labels = read_keywords(settings, fields, learning_rate=STILL)
    privacy = run_settings.privacy
    if privacy is None:
        raise DpvalueError("privacy must be a Privacy, got None: an audit needs a claim")
    run_settings.require_no_keeper("an audit")
    require_count("runs", runs)
    if privacy.unit != "party" and moves and run_settings.learning_rate != STILL:
        raise DpvalueError(f"learning_rate must be left at its default for unit={privacy.unit!r}")
    require_number("confidence", confidence, "between 0.5 and 1", 0.5 <= confidence < 1)
    public = as_utility(utility, *labels)
    sizes, units = public_counts(parties, privacy, records, *labels, public)
    with run_settings.engine.threading(), reporting(progress) as tell:
        worlds = make_worlds(public, run_settings, sizes, units)
        return _audit(worlds, runs, confidence, tell)


def _audit(worlds: Worlds, runs: int, confidence: float, progress: Progress) -> Audit:
    run = worlds.present
    guarantee, choice = run.choice.guarantee, run.choice
    assert guarantee.delta is not None
    attacker = _Attacker(worlds)
    with_, without = [], []
    progress("auditing", 0, runs)
    for number in range(runs):
        with_.append(attacker.scores(worlds.present, 2 * number))
        without.append(attacker.scores(worlds.absent, 2 * number + 1))
        progress("auditing", number + 1, runs)
    present, absent = np.concatenate(with_), np.concatenate(without)
    alpha = 1 - confidence
    each = alpha if guarantee.mu is None else alpha / 2
    by_rates, by_mu = epsilon_bound(present, absent, guarantee.delta, each), None
    if guarantee.mu is not None:
        mu = mu_bound(present, absent, each)
        by_mu = accounting.epsilon_of_mu(mu, guarantee.delta) if mu > 0 else 0.0
    return Audit(
        guarantee=guarantee,
        bound=max(by_rates, by_mu or 0.0),
        bound_by_rates=by_rates,
        bound_by_mu=by_mu,
        sensitivity_ratio=_sensitivity_ratio(worlds),
        leaking_settings=_differences(worlds),
        shared_noise=attacker.shared_noise(),
        same_bytes=_retry(run),
        trials=len(present),
        confidence=confidence,
        schedule=choice.schedule,
        projection=choice.projection,
    )


class _Attacker:
    """Scores canaries by the likelihood ratio of the two worlds at their initial contributions."""

    def __init__(self, worlds: Worlds) -> None:
        run = worlds.present
        self._law, self._seed, self._kind = find_law(run.choice.guarantee.law), run.settings.seed, run.settings.noise
        self._with, self._without = _before_noise(worlds.present), _before_noise(worlds.absent)
        self._scale = (run.choice.mechanism.scale.gain * run.contributions.release_scale).to(self._with).unsqueeze(-1)
        self._canary_of = worlds.canary_of
        stands_still = run.choice.learning_rate == STILL or run.choice.method.one_release
        stands_still = stands_still and not run.choice.schedule.fresh_start
        self._noise: list[Tensor] | None = [] if stands_still else None

    def scores(self, run: Run, number: int) -> Floats:
        """Repeat the releases of a run with fresh noise; return the score of each canary."""
        total = self._with.new_zeros(len(self._with))
        transcript: list[list[Tensor]] = [[] for _ in total]
        expected = self._with if number % 2 == 0 else self._without
        records_noise = self._noise is not None and number < 2 * _COMPARED_RUNS

        def watch(who: Tensor, releases: Tensor) -> None:
            parties, flat = who.flatten(), releases.reshape(who.numel(), -1).to(self._with)
            total.index_add_(0, parties, self._ratios(parties, flat))
            if records_noise:
                noise = (flat - expected[parties]) / self._scale[parties]
                for party, noise_of_release in zip(parties.tolist(), noise, strict=True):
                    transcript[party].append(noise_of_release)

        noise = run.noise
        if self._kind == "fast":
            noise_seed = int(stream(self._seed, Purpose.AUDIT, number).integers(2**62))
            noise = noise_source("fast", noise_seed, Purpose.AUDIT)
        replace(run, noise=noise, witness=watch).release(silent)
        if records_noise and self._noise is not None:
            self._noise.append(torch.stack([torch.stack(rounds) for rounds in transcript], dim=1))
        has_canary = self._canary_of >= 0
        return np.bincount(self._canary_of[has_canary], weights=total.cpu().numpy()[has_canary]).astype(np.float64)

    def shared_noise(self) -> float | None:
        """The largest correlation of noise between parties, or between rounds and runs; 0 if it is not significant.

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
        """The log-likelihood ratios of releases, for the initial contributions."""
        with_, without, scale = self._with[who], self._without[who], self._scale[who]
        return self._law.log_ratio(releases, with_, without, scale).sum(-1)


def _sensitivity_ratio(worlds: Worlds) -> float:
    """The distance that one canary moves the first releases of all parties, divided by the claimed sensitivity."""
    run = worlds.one_canary
    sensitivity = run.choice.mechanism.scale.gain * run.choice.mechanism.sensitivity(run.contributions.units.cpu())
    distances = torch.linalg.vector_norm(
        _before_noise(worlds.one_canary) - _before_noise(worlds.no_canary), dim=-1
    ).cpu()
    ratio = float(torch.linalg.vector_norm(distances / sensitivity)) / sqrt(run.choice.guarantee.parties_per_person)
    return ratio if isfinite(ratio) else inf  # NaN would be distinguishable from every number


def _before_noise(run: Run) -> Tensor:
    """The first releases of all parties without noise (n, d), in float64."""
    contributions, choice = run.contributions, run.choice
    grid = contributions.grid()
    everyone = torch.arange(contributions.n, device=choice.initial.device)
    clipped = contributions.mean_gradients(choice.points, choice.shares, everyone, grid)
    return contributions.release(clipped, torch.zeros_like(clipped), everyone, grid).to(torch.float64)


def _differences(worlds: Worlds) -> tuple[str, ...]:
    """The names of public settings that differ between the two worlds."""
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
        "public features": (present.public.x, absent.public.x),
    }
    if present.choice.basis is not None and absent.choice.basis is not None:
        tensors["basis"] = present.choice.basis.vectors, absent.choice.basis.vectors
    return tuple(differing + [name for name, (here, there) in tensors.items() if not torch.equal(here, there)])


def _retry(run: Run) -> bool | None:
    """Whether a repeated request to a ledger gets the same release; None if no ledger applies."""
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
