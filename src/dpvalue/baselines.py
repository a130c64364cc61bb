"""What a user with a trusted public set would do without any semivalue: a yardstick."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch

from dpvalue.choice import mechanisms
from dpvalue.engine.contributions import Contributions
from dpvalue.engine.local import Local
from dpvalue.models import FixedModelLoss, ModelFactory
from dpvalue.parties import as_parties
from dpvalue.privacy.budget import Guarantee, Privacy, guarantee, warn_if_delta_is_large
from dpvalue.privacy.mechanism import mechanism
from dpvalue.privacy.noise import noise_source
from dpvalue.rehearsal import STEPS, prefer
from dpvalue.run import open_setting
from dpvalue.schedule import Schedule
from dpvalue.semivalues import Floats
from dpvalue.settings import Settings
from dpvalue.training import train
from dpvalue.utility import as_utility

_RELEASE = 2**31  # seeded noise of its own: never that of a run with the same seed


@dataclass(frozen=True, eq=False)
class Screening:
    """A score per party, higher for data that agrees with the public set; made by `public_loss`.

    Attributes:
        scores: the negated mean loss of each party under the public model, clipped and noisy.
        names: the parties.
        guarantee: what was spent.
        expected_auc: how well corrupted parties are expected to be found, by rehearsal on the public set; None without
            privacy.
    """

    scores: Floats
    names: tuple[str | int, ...]
    guarantee: Guarantee
    expected_auc: float | None


def public_loss(
    parties: Any,
    utility: Any,
    *,
    model: str | ModelFactory = "logistic",
    privacy: Privacy | None = Privacy(),  # noqa: B008  (immutable)
    noise: str = "secure",
    preprocess: Any = None,
    target: str | None = None,
    groups: Any = None,
    persons: Any = None,
    engine: Local = Local(),  # noqa: B008  (immutable)
    seed: int = 0,
) -> Screening:
    """Return the loss of each party under a model that is trained on the public set: a screening score, no semivalue.

    How long the model is trained, and where and how wide losses are clipped, is chosen by rehearsal as in
    `dpvalue.value`. It tells who fits the public set, not what anyone adds to a model: it has no notion of a coalition.

    Formal guarantee: with `privacy`, one release of one number per party, which is (epsilon, delta)-DP as `Privacy`
    says. Arguments as in `dpvalue.value`.
    """
    settings = Settings(
        model=model,
        privacy=privacy,
        schedule=Schedule("replay", rounds=1),
        permutations=1,
        projection=None,
        clip="auto",
        clip_rule="auto",
        learning_rate="auto",
        noise=noise,
        preprocess=preprocess,
        engine=engine,
        seed=seed,
    )
    private, public = as_parties(parties, target, groups, persons), as_utility(utility, target, groups, persons)
    unit = "party" if privacy is None else privacy.unit
    units = private.units(unit)
    if privacy is not None and unit == "person":
        private.require_spread(privacy.parties_per_person)
    with engine.threading():
        at, encoding = open_setting(public, settings, private.sizes, units)
        steps, door, expected = STEPS[-1], mechanism(None, None, 0.0), None
        if privacy is not None:
            options = at.rehearsal().loss_options(mechanisms(settings, privacy, private.n))
            best = prefer(options, 1)
            assert best.projection is not None
            assert best.projection.steps is not None
            steps, expected = best.projection.steps, best.auc
            multiplier = privacy.noise_multiplier(1, private.n, best.law)
            door = mechanism(privacy, best.clip, multiplier, law=best.law, rule=best.rule, scale=best.scale)
        spent = guarantee(privacy, door.noise_multiplier, 1, door.clip, noise == "fast", door.law)
        warn_if_delta_is_large(spent, int(units.sum()))
        rows = at.model.inputs(at.public.x), at.model.targets(at.public.y)
        fixed = FixedModelLoss(at.model, train(at.model, at.initial, *rows, [steps], seed)[0])
        private_rows = private.encode(encoding, engine.torch_dtype, engine.torch_device, unit)
        contributions = Contributions(fixed, private_rows, door, engine, privacy is not None and noise == "secure")
        grid, like, drawn = contributions.grid(), fixed.initial(seed), None
        everyone = torch.arange(private.n, device=engine.torch_device)
        clipped = contributions.at(like.expand(private.n, -1), everyone, grid)
        if privacy is not None:
            stream = noise_source(noise, seed).stream(_RELEASE, like, door.law, 0 if grid is None else grid.bits)
            drawn = stream.fill(like.new_empty(private.n, 1, dtype=like.dtype if grid is None else torch.float64))
            drawn = contributions.noise(drawn, everyone)
        released = contributions.release(clipped, drawn, everyone, grid).to(like.dtype)
        scores = released[:, 0].cpu().to(torch.float64).numpy()
    return Screening(scores, private.names, spent, expected)
