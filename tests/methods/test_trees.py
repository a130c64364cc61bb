"""Counts in public trees as a method: what units contribute, what it costs, and every path that valuing takes."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue.coordinator.releases import combine
from dpvalue.methods.leaf_rule import COARSE, FOREST, SMALL, choose_forest
from dpvalue.methods.leaves import Judge
from dpvalue.methods.trees import Trees, norm_of
from dpvalue.models import LeafOnes, build_model
from dpvalue.party.contributions import Contributions
from dpvalue.party.party import PrivacyBoundary
from dpvalue.planning.situation import Agreement
from dpvalue.privacy import accounting
from dpvalue.privacy.charges import charge_of
from dpvalue.privacy.mechanism import Mechanism, make_grid
from dpvalue.protocol.archive import Archive, as_text
from dpvalue.protocol.statistics import LeafCounts, StatisticContext, statistic_of_parts, statistic_parts
from dpvalue.runs.run import PreparedRun, prepare
from dpvalue.values.table import Table
from tests.datasets import classification, regression

TRAIN, TEST = classification(120, classes=3, features=4, test=160)
SITES, PERSONS = np.arange(120) % 3, np.arange(120) // 6
ENGINE = dpv.Local(device="cpu")
UNITS = ("record", "person", "party")
QUIET: dict[str, Any] = {"model": "trees", "noise": "fast", "engine": ENGINE}


def privacy_for(unit: str = "record", neighbours: str = "zero_out", epsilon: float = 2.0) -> dpv.Privacy:
    spread = 3 if unit == "person" else 1
    return dpv.Privacy(epsilon, unit=unit, neighbours=neighbours, parties_per_person=spread)


def ready_for(privacy: dpv.Privacy | None, **given: Any) -> PreparedRun:
    parties = dpv.Parties(*TRAIN, SITES, PERSONS)
    return prepare(dpv.Utility(*TEST), dpv.Settings(**{**QUIET, **given}, privacy=privacy), *parties.counts(privacy))


def contributed(ready: PreparedRun, x: Any, y: Any, on_grid: bool = False) -> tuple[torch.Tensor, Contributions]:
    """What the three parties contribute before noise; on the grid in whole steps."""
    choice = ready.choice
    behind = PrivacyBoundary(
        choice.unit_numbers, choice.mechanism, ready.encoding, ready.situation.settings.privacy, torch.float32, on_grid
    )
    rows = behind.enclose(dpv.Parties(x, y, SITES, PERSONS), ENGINE)
    return rows.mean_gradients(choice.points, choice.shares, torch.arange(3), rows.grid()), rows


def trees_of(ready: PreparedRun) -> Trees:
    assert isinstance(ready.choice.method, Trees)
    return ready.choice.method


def by_hand(ready: PreparedRun, unit: str) -> Any:
    """The counts of the three parties over their units, row by row."""
    forest = trees_of(ready).grown.forest
    leaf = forest.leaf_of(torch.tensor(TRAIN[0], dtype=torch.float32)).numpy()
    found = np.zeros((3, forest.trees, forest.leaves, 3))
    for row, site in enumerate(SITES):
        if unit == "person":
            mates = int(((PERSONS[row] == PERSONS) & (site == SITES)).sum())
            share = 1 / mates / len(np.unique(PERSONS[site == SITES]))
        else:
            share = 1 / 40
        for tree in range(forest.trees):
            found[site, tree, leaf[row, tree], TRAIN[1][row]] += share
    return found.reshape(3, -1)


def test_many_parties_and_many_classes_count_in_a_small_forest() -> None:
    assert choose_forest(8, 2, 0.001) == choose_forest(256, 20, 0.0) == FOREST
    assert choose_forest(257, 2, 0.001) == choose_forest(8, 21, 0.1) == SMALL
    assert choose_forest(8, 2, 0.01) == COARSE


def test_strong_noise_counts_in_coarse_trees_unless_features_matter_together() -> None:
    """Four leaves for a sum of features at epsilon 1, sixteen for XOR, and sixteen wherever noise is weak."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (1000, 2))
    sites = np.arange(600) % 3
    leaves = {}
    for name, y in (("sum", x.sum(1) > 0), ("xor", x.prod(1) > 0)):
        for epsilon in (1.0, 30.0):
            table = dpv.release(
                (x[:600], y[:600].astype(int)), (x[600:], y[600:].astype(int)), groups=sites,
                privacy=dpv.Privacy(epsilon, 1e-5, unit="record"), progress=False, **QUIET,
            )  # fmt: skip
            assert isinstance(table.method, Trees)
            leaves[name, epsilon] = table.method.grown.forest.leaves
    assert leaves == {("sum", 1.0): 4, ("xor", 1.0): 16, ("sum", 30.0): 16, ("xor", 30.0): 16}


@pytest.mark.parametrize("unit", UNITS)
def test_contributions_are_counts(unit: str) -> None:
    ready = ready_for(privacy_for(unit))
    np.testing.assert_allclose(contributed(ready, *TRAIN)[0], by_hand(ready, unit), atol=1e-6)
    steps, made = contributed(ready, *TRAIN, on_grid=True)
    grid = made.grid()
    assert grid is not None
    assert (steps == steps.round()).all()
    if unit == "record":  # a one is so many whole steps, whoever it is of
        one = int(1 / grid.step)
        assert one > 2**15
        np.testing.assert_array_equal(steps.numpy() / one, np.rint(40 * by_hand(ready, unit)))


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("on_grid", [False, True])
def test_one_unit_moves_counts_by_at_most_the_sensitivity(unit: str, neighbours: str, on_grid: bool) -> None:
    """Whatever a unit becomes: blank, another class, elsewhere; and what noise is calibrated to is what is claimed."""
    ready, generator = ready_for(privacy_for(unit, neighbours)), np.random.default_rng(0)
    units = {"record": 40, "person": 20, "party": 1}[unit]
    mine = {"record": np.arange(120) == 7, "person": PERSONS == 4, "party": SITES == 1}[unit]
    mechanism, trees = ready.choice.mechanism, trees_of(ready).grown.forest.trees
    bound = {"zero_out": 1.0, "replace": 2.0}[neighbours] * np.sqrt(trees) / units
    claimed = float(mechanism.sensitivity(torch.tensor([units]))[0])
    assert claimed == pytest.approx(bound, rel=1e-5)
    assert claimed >= bound
    before, made = contributed(ready, *TRAIN, on_grid)
    grid, furthest = made.grid(), 0.0
    scale = 1.0 if grid is None else units * (1 / grid.step)
    for change in range(24):
        x, y = TRAIN[0].copy(), TRAIN[1].copy()
        if change % 4 == 0 or neighbours == "zero_out":
            x[mine] = np.nan
        else:
            x[mine] = generator.normal(0, 10.0 ** generator.integers(-1, 30), (int(mine.sum()), 4))
            y[mine] = generator.integers(3)
        moved = (contributed(ready, x, y, on_grid)[0].double() - before.double()).norm(dim=1) / scale
        if unit != "person":
            assert (moved[[0, 2]] == 0).all()
        assert float(moved.max()) <= claimed * (1 + 1e-12)
        furthest = max(furthest, float(moved.max()))
    # Every unit moves as far as is claimed under zero_out; ones that differ throughout by sqrt(2) of it under replace.
    assert furthest > (0.99 if unit == "record" else 0.3) * bound * (1 if neighbours == "zero_out" else np.sqrt(0.49))


@pytest.mark.parametrize("unit", UNITS)
def test_bad_rows_are_not_counted_and_not_paid(unit: str) -> None:
    """Rows that cannot be read, and labels that nobody knows, take their ones with them; M stays."""
    ready = ready_for(privacy_for(unit))
    good, _ = contributed(ready, *TRAIN)
    for what in ("features", "labels", "half"):
        x, y = TRAIN[0].copy(), TRAIN[1].astype(float)
        blank = (SITES == 2) & ((np.arange(120) % 2 == 0) | (what != "half"))
        if what == "labels":
            y[blank] = 9
        else:
            x[blank] = np.nan
        found, _ = contributed(ready, x, y)
        torch.testing.assert_close(found[:2], good[:2], rtol=0, atol=0)
        share = {"half": 0.5}.get(what, 0.0)
        assert float(found[2].sum()) == pytest.approx(share * float(good[2].sum()), abs=1e-5)
    x = TRAIN[0].copy()
    x[SITES == 2] = np.nan
    given = {**QUIET, "groups": SITES, "persons": PERSONS if unit == "person" else None, "progress": False}
    for privacy in (None, *([] if unit == "party" else [privacy_for(unit, epsilon=8.0 if unit == "record" else 30.0)])):
        result = dpv.value((x, TRAIN[1]), TEST, privacy=privacy, **given)
        assert abs(result.values["shapley"][2]) < 0.1 * max(result.values["shapley"])


def test_what_is_charged_under_one_relation_is_never_too_little_under_the_other() -> None:
    """True losses are |move| / noise, with moves sqrt(B) (zero_out) and sqrt(2 B) (replace) over M."""
    units = torch.tensor([40])
    for neighbours in ("zero_out", "replace"):
        ready = ready_for(privacy_for("record", neighbours))
        choice, trees = ready.choice, trees_of(ready).grown.forest.trees
        noise = float(choice.mechanism.noise_scale(units)[0])
        charge = charge_of(choice.mechanism, units, privacy_for("record", neighbours))
        assert charge.noise_scale == pytest.approx(noise)
        for relation, move in (("zero_out", np.sqrt(trees) / 40), ("replace", np.sqrt(2 * trees) / 40)):
            true_mu = move / noise
            assert 1 / charge.multiplier_for(relation) >= true_mu
            assert choice.guarantee.epsilon_under(relation) >= accounting.epsilon_of_mu(true_mu, 5e-5) * (1 - 1e-9)
            assert choice.guarantee.advantage_under(relation) >= accounting.gaussian_advantage(true_mu) * (1 - 1e-9)
        assert choice.guarantee.epsilon == 2.0


def test_noise_is_fine_enough_for_ones() -> None:
    ready = ready_for(privacy_for("record"), noise="secure")
    grid = make_grid(ready.choice.mechanism, ready.choice.model.size, 1, 40)
    assert grid.bits >= 20
    norm = float(np.sqrt(trees_of(ready).grown.forest.trees))
    ones = torch.zeros(2, ready.choice.model.size)
    forest = trees_of(ready).grown.forest
    trees, cells = forest.trees, 3 * forest.leaves
    for row in range(2):
        ones[row, row + cells * torch.arange(trees)] = 1.0
    clipped = ready.choice.mechanism.apply_clipping(ones)
    torch.testing.assert_close(clipped, ones, rtol=0, atol=0)  # as long as the norm, and not made shorter
    assert norm_of(trees) == pytest.approx(norm, rel=3e-6)
    assert (grid.round(clipped) == torch.where(ones > 0, float(int(1 / grid.step)), 0.0)).all()


def test_values_without_privacy_are_those_of_counts() -> None:
    result = dpv.value(TRAIN, TEST, groups=SITES, privacy=None, progress=False, **QUIET)
    method = result.table.method
    assert isinstance(method, Trees)
    ready = ready_for(None)
    np.testing.assert_allclose(result.table.rows, by_hand(ready, "record"), atol=1e-6)
    judge = Judge(method.grown, ready.situation.public, ENGINE)
    sums = torch.nn.functional.pad(torch.from_numpy(40 * by_hand(ready, "record")), (0, 1))  # no variance of noise
    worths = [float(judge(sums[[bool(mask >> p & 1) for p in range(3)]].sum(0, keepdim=True))[0]) for mask in range(8)]
    expected = dpv.games.value_game(dpv.games.ListedGame(worths)).values
    np.testing.assert_allclose(result.values["shapley"], expected, atol=1e-6)
    assert "counts in public trees" in repr(result)
    accuracy = result.revalue(dpv.Utility(*TEST, metric="accuracy"), progress=False).values["shapley"]
    assert accuracy.sum() > 0.3
    curve = dpv.tasks.retraining_curve(result, TRAIN, TEST, order="high", groups=SITES, points=4)
    assert curve.mean[0] == pytest.approx(worths[-1])
    assert curve.mean[-1] == pytest.approx(worths[0])


def test_a_party_with_wrong_labels_is_last_and_an_only_owner_first() -> None:
    """XOR, which no linear model knows, with one site of wrong labels; and the only owner of a region."""
    generator = np.random.default_rng(0)
    x = generator.uniform(-1, 1, (2100, 2))
    y = (x.prod(1) > 0).astype(int)
    sites, labels = np.arange(1500) % 5, y[:1500].copy()
    labels[sites == 3] = 1 - labels[sites == 3]
    public = x[1500:], y[1500:]
    privacy = dpv.Privacy(1.0, unit="record")
    values = dpv.value((x[:1500], labels), public, groups=sites, privacy=privacy, progress=False, **QUIET)
    assert values.verdict().harms == (3,)
    linear = dpv.value(
        (x[:1500], labels), public, groups=sites, privacy=privacy, progress=False, noise="fast", engine=ENGINE
    )
    assert linear.verdict().harms != (3,)
    owner = np.where(x[:1500, 0] > 0, 0, 1 + np.arange(1500) % 4)
    privacy = dpv.Privacy(8.0, unit="record")
    alone = dpv.value((x[:1500], y[:1500]), public, groups=owner, privacy=privacy, progress=False, **QUIET)
    assert int(np.argmax(alone.values["shapley"])) == 0


@pytest.mark.parametrize("unit", UNITS)
def test_noise_is_that_of_the_sensitivity(unit: str) -> None:
    result = dpv.value(TRAIN, TEST, groups=SITES, persons=PERSONS, privacy=privacy_for(unit), progress=False, **QUIET)
    method, units = result.table.method, {"record": 40, "person": 20, "party": 1}[unit]
    assert isinstance(method, Trees)
    clean = torch.from_numpy(by_hand(ready_for(privacy_for(unit)), unit))
    drawn = (result.table.rows - clean) / torch.from_numpy(result.table.noise_std)[:, None]
    assert float(drawn.square().mean()) == pytest.approx(1.0, abs=0.35)
    trees = method.grown.forest.trees
    assert result.guarantee.noise_multiplier is not None
    expected = result.guarantee.noise_multiplier * np.sqrt(trees) / units
    np.testing.assert_allclose(result.table.noise_std, expected, rtol=1e-5)
    assert np.isfinite(result.intervals().low).all()


def test_tables_and_results_survive_their_files(tmp_path: Path) -> None:
    result = dpv.value(TRAIN, TEST, groups=SITES, privacy=privacy_for(), progress=False, **QUIET)
    result.save(tmp_path / "result")
    loaded = dpv.load(tmp_path / "result")
    assert isinstance(loaded, dpv.Result)
    np.testing.assert_array_equal(loaded.values["shapley"], result.values["shapley"])
    again = loaded.table.value(TEST, progress=False, engine=ENGINE)
    np.testing.assert_array_equal(again.values["shapley"], result.values["shapley"])
    double = loaded.table.value(TEST, progress=False, engine=dpv.Local(device="cpu", dtype="float64"))
    np.testing.assert_allclose(double.values["shapley"], result.values["shapley"], atol=1e-6)
    release = dpv.release(TRAIN, TEST, groups=SITES, privacy=privacy_for(), progress=False, **QUIET)
    np.testing.assert_array_equal(release.rows, result.table.rows)


_ARCHIVE: Archive = Table.archive


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("left", lambda part: part * 0, "stand after their parent"),
        ("right", lambda part: part + 9, "stand after their parent"),
        ("feature", lambda part: part[:1], "of a forest must be"),
        ("threshold", lambda part: part * torch.nan, "finite"),
        ("threshold", lambda part: part.double(), "must be float32"),
        ("leaf", lambda part: part * 0, "number the leaves"),
        ("judged_by", lambda part: part * 0, "name two folds"),
        ("judged_by", lambda part: part[:1], "judged_by"),
        ("public", lambda part: part * 2, "sum to 1"),
        ("public", lambda part: part[:1], "must be float64 of shape"),
        ("public", lambda part: part * torch.nan, "sum to 1|shares"),
    ],
)
def test_damaged_trees_are_refused(name: str, change: Any, message: str, tmp_path: Path) -> None:
    table = dpv.release(TRAIN, TEST, groups=SITES, privacy=privacy_for(), progress=False, **QUIET)
    header, tensors = table.parts()
    _ARCHIVE.write(tmp_path / "table", header, {**tensors, f"method.{name}": change(tensors[f"method.{name}"])})
    with pytest.raises(dpv.DpvalueError, match=message):
        dpv.load(tmp_path / "table")
    _ARCHIVE.write(tmp_path / "table", header, {key: part for key, part in tensors.items() if key != f"method.{name}"})
    with pytest.raises(dpv.DpvalueError, match=name):
        dpv.load(tmp_path / "table")


@pytest.mark.parametrize(
    "change", [{"classes": 2}, {"classes": 0}, {"smoothing": 0.0}, {"sharpness": -1.0}, {"salt": -1}, {"salt": "x"}]
)
def test_damaged_numbers_of_trees_are_refused(change: dict[str, Any], tmp_path: Path) -> None:
    table = dpv.release(TRAIN, TEST, groups=SITES, privacy=privacy_for(), progress=False, **QUIET)
    header, tensors = table.parts()
    _ARCHIVE.write(tmp_path / "table", {**header, "method": {**header["method"], **change}}, tensors)
    with pytest.raises(dpv.DpvalueError, match="is not a whole dpvalue file"):
        dpv.load(tmp_path / "table")


@pytest.mark.parametrize("unit", UNITS)
def test_parties_at_home_make_the_table_of_a_local_run(unit: str) -> None:
    """A job crosses as bytes, trees and all; each party counts alone, and the combination is that of a local run."""
    privacy = privacy_for(unit)
    plan = dpv.plan(dpv.Parties(*TRAIN, SITES, PERSONS), TEST, privacy=privacy, **QUIET)
    assert plan.prepared is not None
    made = plan.prepared.job(("0", "1", "2"))
    job = dpv.Job.from_bytes(made.to_bytes())
    assert job.digest == made.digest
    assert "leaf-counts" in repr(job)
    releases = []
    for site in range(3):
        own = site == SITES
        party = dpv.Party(str(site), TRAIN[0][own], TRAIN[1][own], PERSONS[own], simulation=True, engine=ENGINE)
        releases.append(dpv.Release.from_bytes(party.answer(job).to_bytes()))
    table = combine(job, releases)
    local = plan.release(dpv.Parties(*TRAIN, SITES, PERSONS), progress=False)
    np.testing.assert_allclose(table.rows, local.rows, atol=1e-6)
    np.testing.assert_allclose(table.noise_std, local.noise_std)
    np.testing.assert_allclose(
        table.value(TEST, progress=False, engine=ENGINE).values["shapley"],
        local.value(TEST, progress=False, engine=ENGINE).values["shapley"],
        atol=1e-6,
    )


def test_a_party_is_charged_and_refuses_hostile_trees(tmp_path: Path) -> None:
    privacy = privacy_for()
    job = dpv.plan(dpv.Parties(*TRAIN, SITES), TEST, privacy=privacy, **{**QUIET, "noise": "secure"}).job()
    ledger = dpv.Ledger.create(tmp_path / "ledger", privacy, "0")
    own = TRAIN[0][SITES == 0], TRAIN[1][SITES == 0]
    party = dpv.Party("0", *own, ledger=ledger, engine=ENGINE)
    assert party.answer(job).to_bytes() == party.answer(job).to_bytes()
    assert ledger.spent_epsilon == pytest.approx(2.0, rel=1e-3)
    written, tensors = job.parts()
    header = json.loads(as_text(written))
    hostile: list[tuple[dict[str, Any], str]] = [
        ({"statistic.feature": tensors["statistic.feature"] + 4}, "below the number of features, 4"),
        ({"statistic.left": tensors["statistic.left"] * 0}, "stand after their parent"),
        ({"statistic.leaf": tensors["statistic.leaf"] * 0}, "number the leaves"),
        ({"statistic.threshold": tensors["statistic.threshold"] * torch.inf}, "finite"),
        ({"basis": torch.eye(len(tensors["origin"]))[:1]}, "leaf-counts have no basis|points must have"),
    ]
    for change, message in hostile:
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.Party("0", *own, engine=ENGINE).answer(dpv.Job.of_parts(header, {**tensors, **change}))
    for change, message in (
        ({"statistic": {"name": "leaf-counts", "classes": 4}}, "points must have|must be the 3"),
        ({"statistic": {"name": "leaf-counts", "classes": 10**9}}, "statistic.classes must be 2 to 100"),
        ({"statistic": {"name": "leaf-counts"}}, "statistic.classes is missing"),
        ({"model": "logistic"}, "its digest differs"),
    ):
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.Party("0", *own, engine=ENGINE).answer(dpv.Job.of_parts({**header, **change}, tensors))
    weak = replace(job.mechanism, noise_multiplier=job.mechanism.noise_multiplier / 2)
    with pytest.raises(dpv.DpvalueError, match="noise multiplier of the job must be at least"):
        dpv.Party("0", *own, engine=ENGINE).answer(replace(job, mechanism=weak))
    # A norm that is too small scales ones down, and is no fault: what leaves is still within it.
    short = replace(job, mechanism=replace(job.mechanism, clip=1.0))
    assert bool(dpv.Party("0", *own, engine=ENGINE).answer(short).numbers.isfinite().all())


def test_the_statistic_survives_its_file() -> None:
    statistic = trees_of(ready_for(privacy_for())).statistic
    header, tensors = statistic_parts(statistic)
    again = statistic_of_parts(header, tensors)
    assert isinstance(again, LeafCounts)
    assert isinstance(statistic, LeafCounts)
    assert (again.forest.digest(), again.classes) == (statistic.forest.digest(), 3)
    assert again.width(99) == statistic.forest.trees * statistic.forest.leaves * 3


def test_the_statistic_is_for_the_classes_and_the_model_of_its_job() -> None:
    forest = trees_of(ready_for(privacy_for())).grown.forest
    device = torch.device("cpu")
    models = {
        name: build_model(name, "classification", torch.zeros(4), 3, torch.float32, device)
        for name in ("trees", "logistic")
    }

    def asked(classes: int, model: str) -> Any:
        context = StatisticContext(lambda: models[model], 3, torch.zeros(1), None)
        return LeafCounts(forest, classes).unit_numbers(context)

    assert asked(3, "trees").size == LeafCounts(forest, 3).width(0)
    with pytest.raises(dpv.DpvalueError, match="must be the 3 of the encoding, got 4"):
        asked(4, "trees")
    with pytest.raises(dpv.DpvalueError, match="leaf-counts are for the model 'trees'"):
        asked(3, "logistic")


def test_what_trees_do_not_take_is_refused_in_one_line() -> None:
    sites: dict[str, Any] = {**QUIET, "groups": SITES, "progress": False}
    numbers = regression(120, test=160)

    def refused(message: str, train: Any = TRAIN, test: Any = TEST, **given: Any) -> None:
        with pytest.raises(dpv.DpvalueError, match=message):
            dpv.value(train, test, **{**sites, **given})

    refused("model='trees' values data sets: give groups", groups=None)
    refused("model='trees' is for classification with up to 100 classes, got", *numbers)
    refused("model='trees' needs at least 40 public rows, got 39", test=(TEST[0][:39], TEST[1][:39]))
    refused("model='trees' needs Gaussian noise", privacy=dpv.Privacy(1.0, delta=0))
    refused("needs a utility with l2 = 0", test=dpv.Utility(*TEST, l2=0.1))
    refused("model='trees' makes one release its own way: leave schedule unset", schedule="lagged")
    refused("model='trees' makes one release its own way: leave clip unset", clip=1.0)
    refused("game must be left open for model='trees', got 'steps'", game="steps")
    refused("metric 'mse' does not fit a classification model", test=dpv.Utility(*TEST, metric="mse"))
    with pytest.raises(dpv.DpvalueError, match="leave schedule unset"):
        dpv.federated(TRAIN, TEST, groups=SITES, rounds=2, progress=False, **QUIET)
    with pytest.raises(dpv.DpvalueError, match="auc is about finding wrong parties by steps"):
        dpv.plan(3, TEST, records=40, auc=0.8, **QUIET)


def test_a_plan_says_what_to_expect() -> None:
    plan = dpv.plan(6, TEST, records=200, privacy=privacy_for(epsilon=8.0), **QUIET)
    shown = str(plan)
    assert "releases: 1 per party (counts in public trees)" in shown
    assert "released: counts in 32 public trees of up to 16 leaves" in shown
    assert isinstance(plan.expected, Agreement)
    assert plan.costs.table_bytes == 6 * 32 * 16 * 3 * 4
    assert plan.costs.seconds is not None
    weak = dpv.plan(6, TEST, records=10, privacy=privacy_for(epsilon=0.05), **QUIET)
    assert plan.expected is not None
    assert weak.expected is not None
    assert plan.expected.spearman > weak.expected.spearman + 0.2  # type: ignore[union-attr]
    assert weak.expected.too_small == (10,) * 6  # type: ignore[union-attr]
    assert plan.expected.too_small == ()
    blind = dpv.plan(6, records=200, privacy=privacy_for(), model="trees")
    assert blind.guarantee is not None
    assert blind.guarantee.mechanism == "Gaussian"


@pytest.mark.parametrize("unit", UNITS)
def test_an_audit_finds_nothing_and_finds_planted_faults(unit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def audited(noise: str = "fast", runs: int = 60) -> Any:
        given: dict[str, Any] = {**QUIET, "noise": noise}
        return dpv.audit(8, TEST, records=30, runs=runs, privacy=privacy_for(unit), progress=False, **given)

    sound = audited()
    assert sound.holds
    assert 0.98 < sound.sensitivity_ratio <= 1  # the canary is as long as the norm
    assert sound.shared_noise == 0.0
    with monkeypatch.context() as patch:  # one 1 for each tree counted as if there was one tree
        patch.setattr(Mechanism, "apply_clipping", lambda self, ones: ones)
        patch.setattr("dpvalue.methods.trees.norm_of", lambda trees: 1.0)
        faulty = audited()
        assert faulty.sensitivity_ratio > 1.3
        assert not faulty.holds
    with monkeypatch.context() as patch:  # a one that weighs three
        whole = LeafOnes.ones
        patch.setattr(LeafOnes, "ones", lambda self, x, y, like: 3 * whole(self, x, y, like))
        patch.setattr(Mechanism, "apply_clipping", lambda self, ones: ones)
        assert not audited().holds
    with monkeypatch.context() as patch:  # noise at half of its scale
        scale = Mechanism.noise_scale
        patch.setattr(Mechanism, "noise_scale", lambda self, sizes: scale(self, sizes) / 4)
        assert not audited(runs=150).holds


def test_secure_noise_is_drawn_on_the_grid() -> None:
    given: dict[str, Any] = {**QUIET, "noise": "secure", "privacy": privacy_for(), "groups": SITES}
    first, second = (dpv.release(TRAIN, TEST, progress=False, **given) for _ in range(2))
    assert not torch.equal(first.rows, second.rows)
    assert isinstance(first.method, Trees)
    clean = torch.from_numpy(by_hand(ready_for(privacy_for()), "record"))
    drawn = (first.rows - clean) / torch.from_numpy(first.noise_std)[:, None]
    assert float(drawn.square().mean()) == pytest.approx(1.0, abs=0.35)
