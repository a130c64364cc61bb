"""Which number a party should release when the model is a network: the paper's CNN on MNIST, one Laplace scalar.

Efficiency as in quality.py, exact in the noise, with centre and clipping norm chosen on public rows with planted
labels: the scores of the private rows, and which of them are corrupted, enter the last step alone. A finite step is
judged on 250 public rows, as each party's takes an evaluation of its own.

    python benchmarks/candidates.py --data-dir DIR [--splits 3]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from quality import EPSILONS, Task, split_of
from torch import nn

import dpvalue as dpv
from dpvalue.methods.choosing import choose
from dpvalue.models import CLASSIFICATION, PaperCNN, paper_cnn
from dpvalue.models.build import train
from dpvalue.party.contributions import Contributions
from dpvalue.planning.folds import GradientSketch
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import Settings
from dpvalue.planning.situation import possible_mechanisms
from dpvalue.runs.run import open_setting

ENGINE = dpv.Local(device="cpu")
STEP, JUDGES = 0.5, 250


def settings_of(epsilon: float, seed: int, **given: Any) -> Settings:
    """Return the settings of one run with everything open."""
    settings = Settings(
        model="cnn", privacy=dpv.Privacy(epsilon, delta=0), schedule=dpv.Schedule("replay"), permutations=100,
        projection="auto", clip="auto", clip_rule="auto", learning_rate=1.0, noise="fast", preprocess=None,
        engine=ENGINE, seed=seed,
    )  # fmt: skip
    return replace(settings, **given)


def efficiency_of(scores: Any, changed: Any, epsilon: float, option: Any) -> float:
    """Return the efficiency of these scores of private rows, centred and clipped as the option says."""
    bounded = GradientSketch(scores, np.abs(scores)).contribution(option.rule, option.clip, option.scale.centre)
    auc = dpv.detection.expected_auc(bounded[~changed], bounded[changed], "laplace", option.clip / epsilon)
    return dpv.detection.efficiency(auc, epsilon)


def of_projection(data: Any, seed: int, **given: Any) -> list[float]:
    """Return the efficiencies of a release along a public direction."""
    private, public, changed = data
    ones = np.ones(len(changed), dtype=np.int64)
    at, encoding = open_setting(dpv.Utility(*public), settings_of(1.0, seed, **given), ones, ones)
    rows = dpv.Parties(*private).encode(encoding, torch.float32, torch.device("cpu"))
    rehearsal, found = at.rehearsal(), []
    for epsilon in EPSILONS:
        choice = choose(replace(at, settings=settings_of(epsilon, seed, **given)), rehearsal)
        contributions = Contributions(choice.model, rows, choice.mechanism, ENGINE)
        bounded = contributions.mean_gradients(choice.points, choice.shares, torch.arange(len(changed)))[:, 0].numpy()
        scale = float(contributions.release_scale[0])
        auc = dpv.detection.expected_auc(bounded[~changed], bounded[changed], "laplace", scale)
        found.append(dpv.detection.efficiency(auc, epsilon))
    return found


def of_finite_steps(data: Any, seed: int, steps: int) -> list[float]:
    """Return the efficiencies of what one step along the own gradient changes in the public utility."""
    private, public, changed = data
    settings = settings_of(1.0, seed)
    ones = np.ones(len(changed), dtype=np.int64)
    at, encoding = open_setting(dpv.Utility(*public), settings, ones, ones)
    model, half = at.model, len(at.public.x) // 2
    x, y = at.public.x, at.public.y

    def scores(theta: Any, rows: Any, labels: Any, judge: Any) -> Any:
        utility = model.mean_loss(*judge)
        parts = []
        for some, targets in zip(rows.split(50), labels.split(50), strict=True):
            ones = torch.ones(len(some), 1)
            gradients = model.gradients(theta.expand(len(some), -1), some[:, None], targets[:, None], ones)
            parts.append(utility(theta[None]) - torch.cat([utility((theta - STEP * one)[None]) for one in gradients]))
        return torch.cat(parts).numpy()

    first = train(model, at.initial, x[:half], y[:half], [steps], seed)[0]
    planted = (y[half:] + 1 + torch.arange(len(y) - half) % (len(encoding.classes) - 1)) % len(encoding.classes)
    judge = x[:JUDGES], y[:JUDGES]
    ends = [scores(first, x[half:], labels, judge) for labels in (y[half:], planted)]
    clean, bad = (GradientSketch(one, np.abs(one)) for one in ends)
    whole = train(model, at.initial, x, y, [steps], seed)[0]
    rows = dpv.Parties(*private).encode(encoding, torch.float32, torch.device("cpu"))
    own = scores(whole, rows.x, rows.y, judge)
    found = []
    for epsilon in EPSILONS:
        budget = settings_of(epsilon, seed)
        assert budget.privacy is not None
        (mechanism,) = possible_mechanisms(budget, budget.privacy, len(changed))
        ones = np.ones(len(changed), dtype=np.int64)
        rehearsal = Rehearsal(model, at.initial, at.public, ones, ones, ENGINE, seed)
        option = rehearsal.fit(dpv.Projection(), [(clean, bad)], mechanism, None, None)
        found.append(efficiency_of(own, changed, epsilon, option))
    return found


def trunk(public: Any, seed: int, steps: int) -> Any:
    """Return a factory of CNNs whose convolution is trained on the public rows and fixed; only the head is open."""
    x, labels = torch.tensor(public[0], dtype=torch.float32)[:, None], torch.tensor(public[1])
    model = PaperCNN(x[0], 10, CLASSIFICATION, torch.float32, torch.device("cpu"))
    theta = train(model, model.initial(seed), x, labels, [steps], seed)[0]

    def factory() -> nn.Module:
        made = paper_cnn((1, 28, 28), 10)
        convolution = next(made.children())
        assert isinstance(convolution, nn.Conv2d)
        assert convolution.bias is not None
        convolution.weight.data = theta[: 16 * 9].view(16, 1, 3, 3).clone()
        convolution.bias.data = theta[16 * 9 : 16 * 10].clone()
        convolution.requires_grad_(False)
        return nn.Sequential(nn.Unflatten(1, (1, 28)), made)

    return factory


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data-dir", required=True)
    parser.add_argument("--splits", type=int, default=3)
    asked = parser.parse_args()
    splits = [split_of(Task("cnn", split, asked.data_dir, 1, 1)) for split in range(asked.splits)]
    candidates: dict[str, Callable[[Any, int], list[float]]] = {
        "first order at the initial model": along(dpv.Projection(1, "utility")),
        "first order, warm start of 64 steps": along(dpv.Projection(1, "utility", 64)),
        "path of 16 steps": along(dpv.Projection(1, "path", 16)),
        "path of 64 steps": along(dpv.Projection(1, "path", 64)),
        "path of 256 steps": along(dpv.Projection(1, "path", 256)),
        f"finite step of {STEP} at 64 steps": lambda data, seed: of_finite_steps(data, seed, 64),
        f"finite step of {STEP} at 256 steps": lambda data, seed: of_finite_steps(data, seed, 256),
        "path of a head on a public trunk": lambda data, seed: of_projection(
            data, seed, projection=dpv.Projection(1, "path", 256), model=trunk(data[1], seed, 256)
        ),
    }
    print(f"{'efficiency, MNIST + CNN':38}" + "".join(f"{f'eps = {e:g}':>16}" for e in EPSILONS))  # noqa: T201
    for name, candidate in candidates.items():
        found = [candidate(data, split) for split, data in enumerate(splits)]
        errors = np.std(found, axis=0, ddof=1) / len(found) ** 0.5 if len(found) > 1 else np.zeros(len(EPSILONS))
        cells = (f"{f'{m:.3f} ({e:.3f})':>16}" for m, e in zip(np.mean(found, axis=0), errors, strict=True))
        print(f"{name:38}" + "".join(cells), flush=True)  # noqa: T201


def along(projection: dpv.Projection) -> Callable[[Any, int], list[float]]:
    """Return the candidate of a projection."""
    return lambda data, seed: of_projection(data, seed, projection=projection)


if __name__ == "__main__":
    main()
