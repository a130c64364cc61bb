"""The refit game of a network's head on a public trunk, beside two truths: retraining the head, and all of the network.

    python benchmarks/networks.py --json benchmarks/results/networks.json

Six parties of 30 to 120 of scikit-learn's digits (8 x 8 images), one with wrong labels throughout, one with two of
five, and one with few of the higher digits; 200 public images. A small network (64-32-10) and the paper's CNN. The
truths are Shapley values of retraining on all 64 coalitions: of the last layer on the same public trunk (ridge 1, as
everywhere), and of all layers from the initial model (Adam, 256 steps). Rank correlations, and whether the party with
wrong labels is the last; means over seeds with standard errors. Beside them sizes alone, which know nothing of labels,
and the paper's sum of steps.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import nn

import dpvalue as dpv
from dpvalue.arrays import Floats
from dpvalue.data.utility import PublicSet, as_utility
from dpvalue.methods.fits import Rows, fit_many
from dpvalue.models import Model, build_model, head_on_trunk
from dpvalue.models.build import train_together

SIZES = {"a": 120, "b": 100, "c": 80, "d": 30, "e": 80, "f": 70}
PUBLIC, STEPS = 200, 256
LOW, WRONG, SOME = "c", "e", "f"
BUDGETS = (None, 8.0, 2.0, 1.0)
ENGINE = dpv.Local(device="cpu")


def small() -> nn.Module:
    """Return a network of one hidden layer."""
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 10))


MODELS: dict[str, str | Callable[[], nn.Module]] = {"small": small, "cnn": "cnn"}
Rowed = tuple[np.ndarray, np.ndarray]


def deal(seed: int) -> tuple[dict[str, Rowed], Rowed]:
    """Return the parties' rows and the public ones."""
    images, labels = load_digits(return_X_y=True)
    images, generator = (images / 8 - 1).reshape(-1, 1, 8, 8), np.random.default_rng(seed)
    order = generator.permutation(len(images))
    public, rest = order[:PUBLIC], order[PUBLIC:]
    seldom = generator.random(len(rest)) < np.where(labels[rest] < 5, 1.0, 0.1)
    drawn = {LOW: rest[seldom][: SIZES[LOW]]}
    rest = np.setdiff1d(rest, drawn[LOW], assume_unique=True)
    rest = generator.permutation(rest)
    for name, size in SIZES.items():
        if name != LOW:
            drawn[name], rest = rest[:size], rest[size:]
    parts = {name: (images[drawn[name]], labels[drawn[name]]) for name in SIZES}
    for name, share in ((WRONG, 1.0), (SOME, 0.4)):
        own = parts[name][1]
        some = generator.random(len(own)) < share
        own[some] = (own[some] + generator.integers(1, 10, some.sum())) % 10
    return parts, (images[public], labels[public])


def value(name: str, parts: dict[str, Rowed], public: Rowed, epsilon: float | None, seed: int, game: str) -> dpv.Result:
    """Return the values of the parties."""
    x, y = (np.concatenate(of_all) for of_all in zip(*parts.values(), strict=True))
    groups = np.repeat(list(parts), [len(labels) for _, labels in parts.values()])
    privacy = None if epsilon is None else dpv.Privacy(epsilon, 1e-5, unit="record")
    return dpv.value(
        (x, y), public, model=MODELS[name], game=game, privacy=privacy, noise="fast", groups=groups, seed=seed,
        engine=ENGINE, progress=False,
    )  # fmt: skip


def coalitions() -> list[list[str]]:
    """Return all coalitions, the empty one first."""
    names = list(SIZES)
    return [[name for place, name in enumerate(names) if number >> place & 1] for number in range(2 ** len(names))]


def shapley(worths: Floats) -> Floats:
    """Return the values of a game whose worths are listed."""
    return dpv.games.value_game(dpv.games.ListedGame(worths)).values


def whole_network(model: Model, initial: torch.Tensor, parts: dict[str, Rowed], public: PublicSet, seed: int) -> Floats:
    """Return the values of retraining all of the network."""
    rows = {
        name: (model.inputs(torch.from_numpy(x).to(public.x)), model.targets(torch.from_numpy(y)))
        for name, (x, y) in parts.items()
    }
    sets = [
        (torch.cat([rows[name][0] for name in own]), torch.cat([rows[name][1] for name in own]))
        for own in coalitions()[1:]
    ]
    trained = torch.stack([stages[0] for stages in train_together(model, initial, sets, [STEPS], seed)])
    loss = model.mean_loss(model.inputs(public.x), public.y)
    return shapley(-torch.cat([loss(initial[None]), loss(trained)]).numpy())


def head_alone(result: dpv.Result, model: Model, parts: dict[str, Rowed], public: PublicSet) -> Floats:
    """Return the values of retraining the head on the run's own trunk."""
    head = head_on_trunk(model, public.x[0], result.table.method.tensors()["trunk"])
    pool = Rows(
        head.inputs(torch.cat([torch.from_numpy(x).to(public.x) for x, _ in parts.values()])).double(),
        head.targets(torch.cat([torch.from_numpy(y) for _, y in parts.values()])).double(),
        regression=False,
    )
    owner = np.repeat(np.arange(len(parts)), [len(y) for _, y in parts.values()])
    weights = torch.from_numpy((np.arange(2 ** len(parts))[:, None] >> owner & 1).astype(float))
    theta = torch.cat([fit_many(pool, own, pool.y.T.expand(len(own), -1, -1)) for own in weights.split(16)])
    return shapley(-Rows.of(head, public).mean_loss(theta).numpy())


def spearman(first: Floats, second: Floats) -> float:
    """Return the rank correlation."""
    ranks = [np.argsort(np.argsort(values)) for values in (first, second)]
    return float(np.asarray(np.corrcoef(ranks))[0, 1])


def measure(name: str, seed: int) -> dict[str, float]:
    """Return what is found for one network and one seed."""
    parts, public = deal(seed)
    utility = as_utility(public)
    encoded = utility.encode(utility.encoding(MODELS[name], None, None), ENGINE.torch_dtype, ENGINE.torch_device)
    model = build_model(MODELS[name], "classification", encoded.x[0], 10, ENGINE.torch_dtype, ENGINE.torch_device)
    sizes, place = np.array(list(SIZES.values()), dtype=float), list(SIZES).index(WRONG)
    found: dict[str, float] = {}
    for game, budgets in (("refit", BUDGETS), ("steps", (None, 1.0))):
        for epsilon in budgets:
            result = value(name, parts, public, epsilon, seed, game)
            if not found:
                head = head_alone(result, model, parts, encoded)
                everything = whole_network(model, model.initial(seed), parts, encoded, seed)
                found["head, network"] = spearman(head, everything)
                found["sizes, head"], found["sizes, network"] = spearman(sizes, head), spearman(sizes, everything)
            values, at = result.values["shapley"], f"{game}, epsilon {epsilon or 'none'}"
            found[f"{at}: head"], found[f"{at}: network"] = spearman(values, head), spearman(values, everything)
            found[f"{at}: head, Pearson"] = float(np.asarray(np.corrcoef(values, head))[0, 1])
            found[f"{at}: network, Pearson"] = float(np.asarray(np.corrcoef(values, everything))[0, 1])
            found[f"{at}: wrong labels last"] = float(values.argmin() == place)
            found[f"{at}: wrong labels negative"] = float(values[place] < 0)
    return found


def main() -> None:
    """Measure over seeds, print and keep the means."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[71, 72, 73, 74, 75])
    parser.add_argument("--models", nargs="+", default=["small"])
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    tables: dict[str, dict[str, tuple[float, float]]] = {}
    for name in given.models:
        runs, table = [measure(name, seed) for seed in given.seeds], {}
        for what in runs[0]:
            numbers = [run[what] for run in runs]
            table[what] = float(np.mean(numbers)), float(np.std(numbers, ddof=1) / len(numbers) ** 0.5)
            print(f"{name:6} {what:44} {table[what][0]:+.3f} ({table[what][1]:.3f})", flush=True)  # noqa: T201
        tables[name] = table
        if given.json is not None:
            kept = {"seeds": given.seeds, "mean and standard error": tables}
            given.json.write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
