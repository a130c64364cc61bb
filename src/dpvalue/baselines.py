"""Baselines that need a public set and no semivalue."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Unpack

import torch

from dpvalue.arrays import Floats
from dpvalue.data.parties import read_data
from dpvalue.display import extremes
from dpvalue.methods.choosing import choose
from dpvalue.planning.settings import EntryKeywords, Settings, read_keywords, shows_settings
from dpvalue.privacy.guarantees import Guarantee, warn_of_large_delta
from dpvalue.privacy.noise import noise_source
from dpvalue.progress import reporting
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule
from dpvalue.runs.run import PreparedRun, open_setting
from dpvalue.streams import Purpose

__all__ = ["Screening", "public_loss"]


@dataclass(frozen=True, eq=False)
class Screening:
    """Scores of parties, higher for data that agrees with the public set; `public_loss` returns it.

    Attributes:
        scores: the negated mean loss of each party under the public model, clipped and noisy, less the mean of public
            rows.
        names: the parties.
        guarantee: the privacy guarantee.
        expected_auc: the AUC expected for corrupted parties, by rehearsal on the public set; None without privacy.

    Example:
        >>> screening = public_loss(train, test, groups=sites, privacy=privacy, noise="fast")  # as in `dpvalue.Result`
        >>> screening.names[int(screening.scores.argmin())]
        'west'
    """

    scores: Floats
    names: tuple[str | int, ...]
    guarantee: Guarantee
    expected_auc: float | None

    def __repr__(self) -> str:
        return f"Screening({len(self.names)} parties: {extremes(self.names, self.scores)}, {self.guarantee.terms})"


@shows_settings(EntryKeywords)
def public_loss(
    parties: Any,
    utility: Any,
    settings: Settings | None = None,
    **fields: Unpack[EntryKeywords],
) -> Screening:
    """Return the loss of each party under a model trained on the public set: a screening score, not a semivalue.

    How long the model is trained, and where and how wide losses are clipped, is run_settings by rehearsal as in
    `dpvalue.value`. It tells who fits the public set, not what anyone adds to a model: it has no notion of a coalition.

    Formal guarantee: with `privacy`, one release of one number per party, which is (epsilon, delta)-DP as `Privacy`
    says.

    Args:
        parties: as in `dpvalue.value`; private.
        utility: as in `dpvalue.value`; public.
        settings: as in `dpvalue.value`.
        **fields: as in `dpvalue.value`.

    Returns:
        the scores, with the guarantee.

    Raises:
        DpvalueError: a setting that is out of range or does not fit the data.

    Example:
        >>> screening = public_loss(train, test, groups=sites, privacy=privacy, noise="fast")  # as in `dpvalue.Result`
        >>> screening.guarantee.releases, len(screening.scores)
        (1, 4)
    """
    run_settings, labels = read_keywords(settings, fields)
    run_settings = replace(
        run_settings,
        schedule=Schedule("replay", rounds=1),
        permutations=1,
        projection=Projection(1, "loss"),
        clip="auto",
        clip_rule="auto",
        learning_rate="auto",
    )
    private, public = read_data(parties, utility, *labels)
    with run_settings.engine.threading(), reporting(progress=False) as tell:
        at, encoding = open_setting(public, run_settings, *private.counts(run_settings.privacy))
        choice = choose(at)
        warn_of_large_delta(choice.guarantee, int(at.units.sum()))
        run = PreparedRun(at, encoding, choice, public).run(private)
        if run_settings.noise == "fast":  # seeded noise of its own: never that of a run with the same seed
            run = replace(run, noise=noise_source(run_settings.noise, run_settings.seed, Purpose.SCREENING))
        table, _ = run.release(tell)
    return Screening(table.rows[:, 0].to(torch.float64).numpy(), private.names, choice.guarantee, choice.expected_auc)
