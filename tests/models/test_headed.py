"""The refit game of networks: the head on a public trunk, from one private description a party."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn

import dpvalue as dpv
from dpvalue.data.utility import as_utility
from dpvalue.games.solving import ListedGame, value_game
from dpvalue.methods.fits import Rows, fit_many
from dpvalue.methods.refit import Refit
from dpvalue.models import HeadOnTrunk, build_model, find_head, head_on_trunk
from dpvalue.planning.situation import Agreement
from dpvalue.progress import silent
from dpvalue.protocol.archive import as_text
from dpvalue.runs.run import PreparedRun, prepare
from tests.datasets import Arrays, images
from tests.methods.test_refitting import spearman
from tests.party.test_party import by_messages

pytestmark = pytest.mark.slow

CPU, F64 = torch.device("cpu"), torch.float64
ENGINE = dpv.Local(device="cpu", dtype="float64")
QUIET: dict[str, Any] = {"noise": "fast", "progress": False, "engine": ENGINE}
SIZES = {"a": 60, "b": 40, "c": 25, "d": 30}


def small() -> nn.Module:
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh(), nn.Linear(12, 3))


class Own(nn.Module):
    """A network whose layers are no list; what comes last is `last`, if it is given."""

    def __init__(self, last: nn.Module | None = None, bias: bool = True) -> None:
        super().__init__()
        self.body = nn.ModuleDict({"first": nn.Linear(64, 5), "second": nn.Linear(5, 3, bias=bias)})
        self.last = last

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.body["second"](self.body["first"](x.flatten(1)).relu())
        return outputs if self.last is None else self.last(outputs)


class Mixing(nn.Module):
    """A network that looks at other rows, where it is given any."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head((x + x.mean(0)).flatten(1))
        return outputs


class Peeking(Own):
    """A network that uses the numbers of its head elsewhere."""

    def forward(self, x: Tensor) -> Tensor:
        head = self.body["second"]
        assert isinstance(head.weight, Tensor)
        outputs: Tensor = head(self.body["first"](x.flatten(1)) + head.weight.sum())
        return outputs


class Twice(Own):
    """A network that calls its head twice."""

    def forward(self, x: Tensor) -> Tensor:
        head = self.body["second"]
        hidden = self.body["first"](x.flatten(1))
        outputs: Tensor = head(hidden + head(hidden).sum(1, keepdim=True))
        return outputs


def frozen() -> nn.Module:
    module = small()
    module[-1].requires_grad_(requires_grad=False)  # type: ignore[index]
    return module


def built(model: str | Callable[[], nn.Module]) -> Any:
    return build_model(model, "classification", torch.zeros(1, 8, 8, dtype=F64), 3, F64, CPU)


def at_random(model: str | Callable[[], nn.Module]) -> HeadOnTrunk:
    """A head on a trunk of random numbers."""
    network, example = built(model), torch.randn(1, 8, 8, dtype=F64)
    return HeadOnTrunk.of(network, find_head(network, example), network.initial(0), torch.randn(30, 1, 8, 8, dtype=F64))


@pytest.mark.parametrize(
    ("model", "name", "features"),
    [(small, "3", 12), ("cnn", "4", 144), (Own, "body.second", 5), (Mixing, "head", 64),
     (lambda: nn.Sequential(nn.Sequential(nn.Flatten()), nn.Sequential(nn.Tanh(), nn.Linear(64, 3))), "1.1", 64)],
)  # fmt: skip
def test_the_last_layer_is_found_wherever_it_stands(model: Any, name: str, features: int) -> None:
    head = find_head(built(model), torch.randn(1, 8, 8, dtype=F64))
    assert (head.name, head.features, head.outputs, head.size) == (name, features, 3, 3 * (features + 1))


@pytest.mark.parametrize(
    "model",
    [lambda: Own(nn.Softmax(1)), lambda: Own(bias=False), lambda: Own(nn.Linear(3, 3, bias=False)), frozen, Twice,
     Peeking, lambda: nn.Sequential(nn.Conv2d(1, 3, 8), nn.Flatten())],
    ids=["softmax", "no bias", "last without bias", "frozen", "twice", "peeking", "no linear layer"],
)  # fmt: skip
def test_other_networks_have_no_head(model: Callable[[], nn.Module]) -> None:
    with pytest.raises(dpv.DpvalueError, match=r"and for networks whose last layer is an nn\.Linear with a bias"):
        find_head(built(model), torch.randn(1, 8, 8, dtype=F64))


def with_head(model: Any, head: HeadOnTrunk, theta: torch.Tensor) -> nn.Module:
    """The network of a head's trunk with this head: its weights take features as they are."""
    network = built(model)
    own, centre, scale = head.trunk.split([network.size, head.features, 1])
    module: nn.Module = network.module(own)
    matrix = theta.view(head.width, head.features + 1)
    last = module.get_submodule(find_head(network, torch.zeros(1, 8, 8, dtype=F64)).name)
    assert isinstance(last, nn.Linear)
    with torch.no_grad():
        last.weight.copy_(matrix[:, :-1] / scale)
        last.bias.copy_(matrix[:, -1] - last.weight @ centre)
    return module


@pytest.mark.parametrize("model", [small, "cnn", Own])
def test_a_head_is_the_networks_last_layer(model: Any) -> None:
    """Outputs are those of the module, and gradients those that autograd finds for it."""
    torch.manual_seed(0)
    head, x, y = at_random(model), torch.randn(7, 1, 8, 8, dtype=F64), torch.arange(7) % 3
    theta = torch.randn(2, head.size, dtype=F64)
    rows = head.inputs(x)
    for one, outputs in zip(theta, head.outputs(theta, rows), strict=True):
        torch.testing.assert_close(with_head(model, head, one)(x), outputs)
    for row in range(7):
        at = theta[0].clone().requires_grad_()
        loss = nn.functional.cross_entropy(head.outputs(at[None], rows[row : row + 1])[0], y[row : row + 1])
        (expected,) = torch.autograd.grad(loss, at)
        found = head.record_gradients(theta[:1], rows[None], head.targets(y)[None])[0, row]
        torch.testing.assert_close(found, expected)
    public = torch.randn(30, 1, 8, 8, dtype=F64)
    network = built(model)
    seen = HeadOnTrunk.of(network, find_head(network, x[0]), network.initial(0), public).inputs(public)[:, :-1]
    assert float(seen.mean(0).abs().max()) < 1e-9
    assert abs(float(seen.square().mean()) - 1) < 1e-9


def test_a_row_becomes_what_it_would_alone() -> None:
    head, x = at_random(Mixing), torch.randn(9, 1, 8, 8, dtype=F64)
    together = head.inputs(x)
    for place, row in enumerate(x):
        torch.testing.assert_close(head.inputs(row[None])[0], together[place])
    assert head.inputs(x[:0]).shape == (0, 65)


def dealt(seed: int = 0, public: int = 40) -> tuple[dict[str, Arrays], Arrays]:
    """Parties of small images; one has all labels wrong."""
    (X, y), utility = images(sum(SIZES.values()), test=public, seed=seed)
    cuts = np.cumsum(list(SIZES.values()))
    parts = {
        name: (X[end - SIZES[name] : end], y[end - SIZES[name] : end]) for name, end in zip(SIZES, cuts, strict=True)
    }
    parts["d"] = parts["d"][0], (parts["d"][1] + 1) % 3
    return parts, utility


def joined(parts: dict[str, Arrays]) -> tuple[Arrays, Any]:
    X, y = (np.concatenate(of_all) for of_all in zip(*parts.values(), strict=True))
    return (X, y), np.repeat(list(parts), [len(labels) for _, labels in parts.values()])


def released(parts: dict[str, Arrays], public: Arrays, **given: Any) -> dpv.Table:
    data, groups = joined(parts)
    return dpv.release(data, public, groups=groups, **{"model": small, "privacy": None, **QUIET, **given})


def test_data_sets_of_networks_play_the_refit_game_where_there_is_a_head() -> None:
    parts, public = dealt()
    assert released(parts, public).method.tensors().get("trunk") is not None
    assert released(parts, public, game="refit", model="cnn").method.tensors().get("trunk") is not None
    assert released(parts, public, game="steps").method.tensors().get("trunk") is None
    data, _ = joined(parts)
    rows = dpv.release(data, public, model=small, privacy=None, permutations=2, **QUIET)  # each row a party
    assert rows.method.name == "steps"
    wide = lambda: nn.Sequential(nn.Flatten(), nn.Linear(64, 700), nn.Linear(700, 3))  # noqa: E731
    for model, why in (
        (lambda: Own(nn.Softmax(1)), "is for linear and logistic regression, and for networks whose last layer"),
        (wide, "is for heads of networks of up to 2000 parameters"),
    ):
        assert released(parts, public, model=model, permutations=2).method.name == "steps"
        with pytest.raises(dpv.DpvalueError, match=f"game='refit' {why}"):
            released(parts, public, model=model, game="refit")


def test_the_plan_of_a_network_rehearses_its_head_and_says_why_there_is_none() -> None:
    parts, public = dealt()
    data, groups = joined(parts)
    given: dict[str, Any] = {"groups": groups, "privacy": dpv.Privacy(8.0, 1e-5, unit="record"), "engine": ENGINE}
    made = dpv.plan(data, public, model=small, noise="fast", **given)
    assert isinstance(made.expected, Agreement)
    assert "1 per party (refit game)" in str(made)
    junk = np.zeros_like(data[0]), data[1][::-1]
    again = dpv.plan(junk, public, model=small, noise="fast", **given)  # no private row is read
    assert again.expected == made.expected
    np.testing.assert_array_equal(
        made.value(data, groups=groups, progress=False).values["shapley"],
        dpv.value(data, public, model=small, noise="fast", progress=False, **given).values["shapley"],
    )
    other = dpv.plan(data, public, model=lambda: Own(nn.Softmax(1)), **given)
    assert not isinstance(other.expected, Agreement)
    assert "game: steps, because the refit game is for linear and logistic regression, and for networks" in str(other)


def test_values_are_those_of_retraining_the_head() -> None:
    """Digits, six parties of which one has wrong labels: beside retraining the last layer on all 64 coalitions."""
    X, y = load_digits(n_class=5, return_X_y=True)
    factory = lambda: nn.Sequential(nn.Linear(64, 16), nn.ReLU(), nn.Linear(16, 5))  # noqa: E731
    found = []
    for seed in (5, 6):
        order = np.random.default_rng(seed).permutation(len(X))
        pixels, labels = X[order] / 8 - 1, y[order]
        public, ends = (pixels[:150], labels[:150]), 150 + np.cumsum([90, 70, 50, 20, 60, 50])
        parts = {
            f"p{place}": (pixels[end - size : end], labels[end - size : end].copy())
            for place, (end, size) in enumerate(zip(ends, (90, 70, 50, 20, 60, 50), strict=True))
        }
        parts["p4"] = parts["p4"][0], (parts["p4"][1] + 1) % 5
        parts["p5"][1][::2] = (parts["p5"][1][::2] + 2) % 5
        table = released(parts, public, model=factory, seed=seed, privacy=dpv.Privacy(20.0, 1e-5, unit="record"))
        values = table.value(public, engine=ENGINE, progress=False).values["shapley"]
        utility = as_utility(public)
        encoded = utility.encode(table.encoding, F64, CPU)
        model = build_model(factory, "classification", encoded.x[0], 5, F64, CPU)
        assert table.method.tensors().get("trunk") is not None
        head = head_on_trunk(model, encoded.x[0], table.method.tensors()["trunk"])
        data, groups = joined(parts)
        pool = Rows(head.inputs(torch.from_numpy(data[0])), head.targets(torch.from_numpy(data[1])), regression=False)
        owner = np.unique(groups, return_inverse=True)[1]
        weights = torch.from_numpy((np.arange(64)[:, None] >> owner & 1).astype(float))
        theta = fit_many(pool, weights, pool.y.T.expand(64, -1, -1))
        truth = value_game(ListedGame(-Rows.of(head, encoded).mean_loss(theta).numpy())).values
        found.append(spearman(values, truth))
        assert values.argmin() == 4
        assert values[4] < 0
        assert (values[:4] > 0).all()
    assert np.mean(found) > 0.9


def test_public_training_that_diverges_is_said_to() -> None:
    parts, (X, y) = dealt()
    with pytest.raises(dpv.DpvalueError, match="training the network on the public rows diverged: scale the features"):
        released(parts, (X + 1e3, y), model=Steep)


class Steep(nn.Module):
    """Features that overflow for rows that are far off."""

    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        outputs: Tensor = self.head(x.flatten(1).exp())
        return outputs


@pytest.mark.parametrize("unit", ["record", "party", "person"])
def test_rows_whose_features_are_not_finite_count_for_nothing(unit: str) -> None:
    parts, public = dealt()
    given: dict[str, Any] = {"model": Steep, "game": "refit", "seed": 3}
    far, none = parts["a"][0].copy(), parts["a"][1].copy()
    far[7] = 1e4  # exp of it is infinite
    none[7] = 99  # no class
    _, groups = joined(parts)
    persons = np.arange(len(groups)) // 2 if unit == "person" else None
    tables = [
        released({**parts, "a": own}, public, privacy=dpv.Privacy(1e5, unit=unit), persons=persons, **given)
        for own in ((far, parts["a"][1]), (parts["a"][0], none))
    ]
    assert bool(tables[0].rows.isfinite().all())
    if unit != "party":  # one such row makes a whole party's mean meaningless: it is zero, as a whole
        torch.testing.assert_close(tables[0].rows, tables[1].rows)
    assert torch.equal(tables[0].rows[1:], tables[1].rows[1:])


def ready_for(parts: dict[str, Arrays], public: Arrays, **given: Any) -> tuple[PreparedRun, dpv.Parties]:
    data, groups = joined(parts)
    persons = np.array([f"{group} {row // 2}" for row, group in enumerate(groups)])
    parties = dpv.Parties(*data, groups, persons, "who")
    settings = dpv.Settings(engine=ENGINE, noise="fast", seed=3, **{"model": "cnn", **given})
    return prepare(dpv.Utility(*public), settings, *parties.counts(settings.privacy)), parties


def test_a_record_moves_a_release_by_no_more_than_one_clip() -> None:
    parts, public = dealt()
    ready, parties = ready_for(parts, public, model=small, privacy=None)
    generator, own = np.random.default_rng(0), parts["a"]

    def rows(X: Any, y: Any) -> Tensor:
        data, groups = joined({**parts, "a": (X, y)})
        return ready.run(dpv.Parties(*data, groups)).release(silent)[0].rows

    before = ready.run(parties).release(silent)[0].rows
    assert float(before.norm(dim=1).max()) <= 1 + 1e-9
    for size in (1.0, 10.0, 1e3, 1e6):
        X, unknown = own[0].copy(), own[1].copy()
        X[3], unknown[3] = size * generator.normal(size=X[3].shape), 99
        after, without = rows(X, own[1]), rows(X, unknown)
        assert float((after - before)[0].norm()) <= 2 / SIZES["a"] + 1e-9
        assert 0 < float((after - without)[0].norm()) <= 1 / SIZES["a"] + 1e-9
        assert torch.equal(after[1:], before[1:])
        assert torch.equal(without[1:], before[1:])


@pytest.mark.parametrize("unit", ["party", "record", "person"])
def test_single_parties_asked_by_bytes_make_the_same_table(unit: str) -> None:
    parts, public = dealt()
    ready, parties = ready_for(parts, public, privacy=dpv.Privacy(4.0, unit=unit))
    assert "trunk" in ready.choice.method.tensors()
    local = ready.run(parties).release(silent)[0]
    _, groups = joined(parts)
    own = {
        name: dpv.Party(
            name, X, y, [f"{name} {row // 2}" for row in np.flatnonzero(groups == name)], "who",
            simulation=True, engine=ENGINE,
        )
        for name, (X, y) in parts.items()
    }  # fmt: skip
    table = by_messages(ready, own)
    assert local.names == tuple(sorted(own))
    assert float((table - local.rows).abs().max()) < 1e-12


def test_a_party_takes_no_trunk_that_is_none() -> None:
    parts, public = dealt()
    ready, _ = ready_for(parts, public, privacy=dpv.Privacy(4.0, unit="record"))
    written, tensors = ready.job(sorted(SIZES)).parts()
    header = json.loads(as_text(written))

    def asked(**changes: Tensor | None) -> None:
        """What a party does with a job; its rows cannot be read, so that nothing must get as far."""
        kept = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
        job = dpv.Job.from_bytes(dpv.Job.archive.pack(header, kept))
        request = dpv.Request(job.digest, 0, torch.zeros(1, job.size), torch.ones(1))
        dpv.Party("a", None, None, simulation=True, engine=ENGINE).answer(job, request)

    with pytest.raises(dpv.DpvalueError, match="the party's features"):
        asked()
    trunk = tensors["trunk"]
    for other, message in (
        (None, "origin must have the"), (trunk[:-1], "trunk must be"), (torch.cat([trunk, trunk]), "trunk must be"),
        (trunk * float("nan"), "trunk must be"), (trunk[None], "the tensor 'trunk' must be"),
        (trunk.long(), "the tensor 'trunk' must be"), (trunk[:0], "the tensor 'trunk' must be"),
    ):  # fmt: skip
        with pytest.raises(dpv.DpvalueError, match=message):
            asked(trunk=other)
    header["model"] = "logistic"
    with pytest.raises(dpv.DpvalueError, match="its digest differs"):
        asked()
    ready, _ = ready_for(parts, public, model=small, privacy=dpv.Privacy(4.0, unit="record"))
    with pytest.raises(dpv.DpvalueError, match="model must be one of logistic, linear, cnn, trees, got 'custom'"):
        dpv.Job.from_bytes(ready.job(sorted(SIZES)).to_bytes()).build(torch.device("cpu"))


@pytest.mark.parametrize("model", [small, "cnn"])
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_table_survives_its_file_and_is_valued_again(model: Any, dtype: str, tmp_path: Path) -> None:
    parts, public = dealt()
    engine = dpv.Local(device="cpu", dtype=dtype)
    table = released(parts, public, model=model, engine=engine, privacy=dpv.Privacy(4.0, unit="record"))
    table.save(tmp_path / "file")
    own = None if isinstance(model, str) else model
    loaded = dpv.load(tmp_path / "file", model=own)
    assert isinstance(loaded, dpv.Table)
    for metric in ("loss", "accuracy"):
        utility = dpv.Utility(*public, metric=metric)
        first, second = (one.value(utility, engine=engine, progress=False).values["shapley"] for one in (table, loaded))
        np.testing.assert_array_equal(first, second)
        other = dpv.Local(device="cpu", dtype="float64" if dtype == "float32" else "float32")
        assert np.isfinite(loaded.value(utility, engine=other, progress=False).values["shapley"]).all()
    named = dpv.Utility(*public, metric=lambda outputs, labels: float(outputs[:, 0].sum()))
    assert np.isfinite(loaded.value(named, engine=engine, progress=False).values["shapley"]).all()
    if own is None:
        return
    with pytest.raises(dpv.DpvalueError, match="pass it again"):
        dpv.load(tmp_path / "file").value(public, progress=False)  # type: ignore[union-attr]
    changed = dpv.load(tmp_path / "file", model=lambda: nn.Sequential(*list(small())[:2], nn.ReLU(), nn.Linear(12, 3)))  # type: ignore[call-overload]
    with pytest.raises(dpv.DpvalueError, match="its digest differs"):
        changed.value(public, engine=engine, progress=False)  # type: ignore[union-attr]


def test_files_with_another_trunk_are_refused(tmp_path: Path) -> None:
    parts, public = dealt()
    table = released(parts, public, model="cnn")
    header, tensors = table.parts()
    trunk = tensors["method.trunk"]
    moved = trunk.clone()
    moved[0] += 1e-6
    for other, message in (
        (None, "its digest differs"), (moved, "its digest differs"), (trunk[:-1], "trunk must be"),
        (trunk * float("inf"), "trunk must be"), (trunk.long(), "the tensor 'trunk'"),
        (trunk[None], "the tensor 'trunk'"),
    ):  # fmt: skip
        kept = {name: tensor for name, tensor in {**tensors, "method.trunk": other}.items() if tensor is not None}
        dpv.Table.archive.write(tmp_path / "file", header, kept)
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.load(tmp_path / "file").value(public, engine=ENGINE, progress=False)  # type: ignore[union-attr]
    steps = released(parts, public, model="cnn", game="steps")
    header, tensors = steps.parts()
    dpv.Table.archive.write(tmp_path / "file", header, tensors | {"method.trunk": trunk})
    with pytest.raises(dpv.DpvalueError, match="the method 'steps' has no tensors of its own, got trunk"):
        dpv.load(tmp_path / "file")
    network = built("cnn")
    assert isinstance(table.method, Refit)
    bare = replace(table, method=replace(table.method, trunk=None), digest=network.digest(), initial=network.initial(0))
    with pytest.raises(dpv.DpvalueError, match="or a network's head on a trunk"):
        bare.value(public, engine=ENGINE, progress=False)
