"""A method of valuing from outside, in one file: whole-number counts of labels, without a model and without gradients.

A record is a one at its class. A party releases the noisy shares of its classes, and a coalition is worth what its
pooled shares predict of the public labels. Everything that a run does with a method of the library works with it.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import pytest
import torch
from torch import Tensor

import dpvalue as dpv
from dpvalue.arrays import Bools, Floats
from dpvalue.coordinator.releases import combine
from dpvalue.data.utility import PublicSet
from dpvalue.engine.engines import Engine
from dpvalue.games.solving import ReleaseGame
from dpvalue.methods.base import METHODS, Choice, Method, register_method
from dpvalue.methods.table import ReleaseTable
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import GAMES
from dpvalue.planning.situation import Situation
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.protocol.archive import Tensors
from dpvalue.protocol.schedule import Schedule
from dpvalue.protocol.statistics import STATISTICS, Statistic, StatisticContext, register_statistic
from tests.datasets import classification

TRAIN, TEST = classification(120, classes=3, features=4)
SITES = np.arange(120) % 4
ENGINE = dpv.Local(device="cpu")


class Ones:
    """A one at the class of each row."""

    def __init__(self, classes: int) -> None:
        self.size = self.numbers = classes

    def inputs(self, x: Tensor) -> Tensor:
        return x.flatten(1)[:, :1]

    def targets(self, y: Tensor) -> Tensor:
        return y

    def record_gradients(self, theta: Tensor, x: Tensor, y: Tensor) -> Tensor:
        return torch.nn.functional.one_hot(y, self.size).to(theta)

    def gradients(self, theta: Tensor, x: Tensor, y: Tensor, weights: Tensor) -> Tensor:
        return torch.einsum("brm,br->bm", self.record_gradients(theta, x, y), weights)

    def numbers_per_row(self) -> int:
        return self.size

    def digest(self) -> str:
        return hashlib.sha256(f"ones of {self.size} classes".encode()).hexdigest()


@dataclass(frozen=True)
class LabelCounts(Statistic):
    """The party's side."""

    name: ClassVar[str] = "label-counts"
    words: ClassVar[str] = "its label"

    classes: int

    def width(self, directions: int) -> int:
        return self.classes

    def unit_numbers(self, context: StatisticContext) -> Ones:
        return Ones(self.classes)


@dataclass(frozen=True, eq=False)
class Counts(Method):
    """The coordinator's side."""

    name: ClassVar[str] = "label-counts"
    game_name: ClassVar[str] = "label counts"
    summary: ClassVar[str] = "released counts of its labels"
    one_release: ClassVar[bool] = True

    classes: int

    @property
    def statistic(self) -> Statistic:
        return LabelCounts(self.classes)

    @classmethod
    def choose(cls, situation: Situation, rehearsal: Rehearsal | None = None) -> Choice:
        privacy, settings = situation.settings.privacy, situation.settings
        classes = int(situation.public.y.max()) + 1
        multiplier = 0.0 if privacy is None else privacy.noise_multiplier(1, situation.n, "gaussian")
        unit, neighbours = ("record", "zero_out") if privacy is None else (privacy.unit, privacy.neighbours)
        return Choice(
            method=cls(classes),
            model=Ones(classes),
            initial=situation.initial.new_zeros(classes),
            basis=None,
            schedule=Schedule("replay", rounds=1, probes=1),
            releases=1,
            mechanism=Mechanism(1.0, multiplier, unit, neighbours),
            learning_rate=1.0,
            guarantee=guarantee(
                privacy, multiplier, 1, 1.0, settings.noise == "fast", "gaussian", settings.ledger_terms
            ),
        )

    def expectation(self, situation: Situation, choice: Choice, rehearsal: Rehearsal | None) -> None:
        return None

    def game(self, table: ReleaseTable, public: PublicSet, engine: Engine) -> Shares:
        return Shares(table.rows, table.sizes, np.bincount(public.y.numpy(), minlength=self.classes))

    def stand_in_game(self, situation: Situation, choice: Choice, rows: Tensor) -> Shares:
        return Shares(rows, np.ones(len(rows)), np.bincount(situation.public.y.numpy(), minlength=self.classes))

    def header(self) -> dict[str, Any]:
        return {"classes": self.classes}

    @classmethod
    def from_parts(cls, header: dict[str, Any], tensors: Tensors, origin: Tensor, basis: Tensor | None) -> Self:
        if not isinstance(header.get("classes"), int) or header["classes"] != len(origin):
            raise dpv.DpvalueError(f"classes must be {len(origin)}, got {header.get('classes')!r}")
        return cls(header["classes"])


@dataclass
class Shares(ReleaseGame):
    """What the pooled class shares of a coalition predict of public labels: minus the log loss."""

    rows: Tensor
    sizes: Any
    public: Any
    n: int = field(init=False)

    def __post_init__(self) -> None:
        self.n = len(self.rows)

    def with_rows(self, rows: Tensor) -> Shares:
        return Shares(rows, self.sizes, self.public)

    def worth(self, coalitions: Bools) -> Floats:
        counts = np.maximum(self.rows.double().numpy(), 0) * np.asarray(self.sizes)[:, None]
        pooled = coalitions @ counts + 1
        return np.asarray(np.log(pooled / pooled.sum(1, keepdims=True)) @ self.public / self.public.sum())


@pytest.fixture(autouse=True)
def added() -> Iterator[None]:
    register_method(Counts)
    register_statistic(LabelCounts)
    yield
    del METHODS[Counts.name], STATISTICS[LabelCounts.name]
    GAMES.remove(Counts.name)


def settings(**given: Any) -> dict[str, Any]:
    privacy = dpv.Privacy(2.0, unit="record")
    return {"game": "label-counts", "privacy": privacy, "noise": "fast", "engine": ENGINE, **given}


def test_a_method_from_outside_values_as_its_game_says() -> None:
    result = dpv.value(TRAIN, TEST, groups=SITES, progress=False, **settings(privacy=None))
    shares = np.stack([np.bincount(TRAIN[1][site == SITES], minlength=3) for site in range(4)]) / 30
    np.testing.assert_allclose(result.table.rows, shares, atol=1e-6)
    game = Shares(torch.from_numpy(shares), np.full(4, 30), np.bincount(TEST[1], minlength=3))
    expected = dpv.games.value_game(game).values
    np.testing.assert_allclose(result.values["shapley"], expected, atol=1e-6)
    noisy = dpv.value(TRAIN, TEST, groups=SITES, progress=False, **settings())
    assert noisy.guarantee.noise_multiplier is not None
    assert noisy.table.noise_std == pytest.approx(noisy.guarantee.noise_multiplier / 30)
    assert float((noisy.table.rows - result.table.rows).abs().max()) < 6 * float(noisy.table.noise_std.max())
    assert "label counts" in repr(noisy.table)
    assert noisy.intervals().low.shape == (4,)


def test_it_is_planned_saved_loaded_and_valued_again(tmp_path: Path) -> None:
    plan = dpv.plan(TRAIN, TEST, groups=SITES, **settings())
    assert plan.guarantee is not None
    assert "parties: 4" in str(plan)
    table = plan.release(TRAIN, groups=SITES, progress=False)
    table.save(tmp_path / "table")
    loaded = dpv.load(tmp_path / "table")
    assert isinstance(loaded, dpv.Table)
    first, second = (one.value(TEST, progress=False, engine=ENGINE).values["shapley"] for one in (table, loaded))
    np.testing.assert_array_equal(first, second)
    del METHODS["label-counts"]
    with pytest.raises(dpv.DpvalueError, match="unknown method 'label-counts'; the methods are steps, scores, refit"):
        dpv.load(tmp_path / "table")
    METHODS["label-counts"] = Counts


def test_parties_at_home_answer_it_and_are_charged(tmp_path: Path) -> None:
    given = settings(noise="secure")
    job = dpv.Job.from_bytes(dpv.plan(TRAIN, TEST, groups=SITES, **given).job().to_bytes())
    assert job.statistic == LabelCounts(3)
    ledger = dpv.Ledger.create(tmp_path / "ledger", dpv.Privacy(2.0, unit="record"), "0")
    releases = []
    for site in range(4):
        own = TRAIN[0][site == SITES], TRAIN[1][site == SITES]
        kept = ledger if site == 0 else None
        releases.append(dpv.Party(str(site), *own, ledger=kept, engine=ENGINE).answer(job))
    assert ledger.spent_epsilon == pytest.approx(2.0, rel=1e-3)
    result = combine(job, releases).value(TEST, progress=False, engine=ENGINE)
    assert result.table.method.name == "label-counts"
    assert np.isfinite(result.values["shapley"]).all()
    simulated = dpv.plan(TRAIN, TEST, groups=SITES, **settings()).job()
    with pytest.raises(dpv.DpvalueError, match="the job must not have seeded noise"):
        dpv.Party("0", *TRAIN, engine=ENGINE).answer(simulated)


def test_a_name_is_registered_once_and_must_be_known() -> None:
    class Other(Counts):
        """Another method of the same name."""

    with pytest.raises(dpv.DpvalueError, match="a method 'label-counts' is registered already"):
        register_method(Other)
    with pytest.raises(dpv.DpvalueError, match="game must be one of auto, refit, steps, label-counts; got 'other'"):
        dpv.Settings(game="other")
    with pytest.raises(dpv.DpvalueError, match="game='label-counts' makes one release of its own: leave clip unset"):
        dpv.Settings(game="label-counts", clip=1.0)
