"""What leaves: bounded sensitivity, whatever the data, and noise of the stated law."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import nn

import dpvalue as dpv
from dpvalue.data.rows import PublicRows
from dpvalue.models import Linear, Network
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.clipping import clip_rows, normalise_rows
from dpvalue.privacy.mechanism import Mechanism, Scale, make_mechanism
from tests.datasets import classification

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float64": torch.float64}
HOSTILE = [0.0, 1.0, -1.0, 1e-30, 1e30, -1e30, float("inf"), float("-inf"), float("nan")]


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("norm", [1e-3, 1.0, 77.7])
@pytest.mark.parametrize("scale", [1e-20, 1e-3, 1.0, 1e3, 1e20, 1e37])
def test_a_clipped_vector_is_never_longer_than_the_norm(dtype: str, norm: float, scale: float) -> None:
    generator = torch.Generator().manual_seed(0)
    vectors = (torch.randn(500, 40, dtype=torch.float64, generator=generator) * scale).to(DTYPES[dtype])
    clipped = clip_rows(vectors, norm)
    lengths = clipped.double().norm(dim=1)
    assert (lengths <= norm).all()
    short = vectors.double().norm(dim=1) < 0.99 * norm
    assert torch.equal(clipped[short], vectors[short])
    cosine = nn.functional.cosine_similarity(clipped.double() / lengths[:, None], vectors.double() / scale, dim=1)
    assert (cosine > 1 - 1e-6).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_overflow_and_non_finite_entries(dtype: str) -> None:
    largest = torch.finfo(DTYPES[dtype]).max
    rows = [[largest, largest], [largest, float("nan")], [float("inf"), 1.0], [-float("inf"), 0.0], [0.0, 0.0]]
    clipped = clip_rows(torch.tensor(rows, dtype=DTYPES[dtype]), 2.0)
    assert clipped.isfinite().all()
    assert (clipped.double().norm(dim=1) <= 2.0).all()
    assert torch.equal(clipped[1:], torch.zeros(4, 2, dtype=DTYPES[dtype]))


@pytest.mark.parametrize("exponent", range(-44, 39, 2))
def test_no_length_escapes_through_the_range_of_float32(exponent: int) -> None:
    """A scale below the smallest normal float32 would have too few digits to bound anything."""
    generator = torch.Generator().manual_seed(exponent + 50)
    vectors = (torch.rand(200, 7, generator=generator, dtype=torch.float64) * 10.0**exponent).to(torch.float32)
    for norm in (1e-12, 1e-6, 1.0):
        assert (clip_rows(vectors, norm).double().norm(dim=1) <= norm).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("exponent", range(-40, 38, 6))
def test_a_normalised_vector_is_as_long_as_the_norm_and_never_longer(dtype: str, exponent: int) -> None:
    generator = torch.Generator().manual_seed(exponent + 50)
    vectors = (torch.randn(300, 5, generator=generator, dtype=torch.float64) * 10.0**exponent).to(DTYPES[dtype])
    vectors[0] = torch.nan
    vectors[1, 2] = torch.inf
    vectors[2] = 0.0
    for norm in (1e-12, 1.0, 300.0):
        lengths = normalise_rows(vectors, norm).double().norm(dim=1)
        assert (lengths <= norm).all()
        assert (lengths[:3] == 0).all()
        torch.testing.assert_close(lengths[3:], torch.full_like(lengths[3:], norm), rtol=1e-5, atol=0)


@pytest.mark.parametrize("exponent", [-300, -200, -170, -162, -160, -150, 150, 200, 300])
def test_no_length_escapes_through_the_range_of_float64(exponent: int) -> None:
    """Squares of tiny numbers vanish and those of large ones overflow: neither may hide a length."""
    generator = torch.Generator().manual_seed(exponent + 500)
    vectors = torch.randn(500, 3, generator=generator, dtype=torch.float64) * 10.0**exponent
    for bounded in (normalise_rows(vectors, 1.0), clip_rows(vectors, 1.0)):
        assert (bounded / 2).norm(dim=1).max() <= 0.5
    lengths = normalise_rows(vectors, 1.0).norm(dim=1)
    torch.testing.assert_close(lengths, torch.ones_like(lengths))


@pytest.mark.parametrize("rule", ["flat", "normalise"])
def test_a_scale_moves_where_one_number_is_clipped_and_how_it_is_read(rule: str) -> None:
    scale = Scale(centre=2.0, level=5.0, gain=3.0)
    mechanism = Mechanism(0.5, 1.0, "party", "zero_out", rule=rule, scale=scale)
    found = mechanism.apply_clipping(torch.tensor([[-9.0], [1.8], [2.0], [2.1], [2.6], [torch.nan], [torch.inf]]))[:, 0]
    expected = [-0.5, -0.2, 0, 0.1, 0.5, 0, 0] if rule == "flat" else [-0.5, -0.5, 0, 0.5, 0.5, 0, 0]
    torch.testing.assert_close(found, torch.tensor(expected), rtol=1e-5, atol=1e-6)
    assert (found.abs() <= 0.5).all()
    torch.testing.assert_close(scale.read(found), 5 + 3 * found)


def test_nothing_is_released_without_noise() -> None:
    model = Linear(4, 2, "classification", torch.float64, CPU)
    rows = PublicRows.by_party(np.ones((2, 4)), np.array([0, 1]), np.ones(2, dtype=np.int64), torch.float64, CPU)
    everyone, engine = torch.arange(2), dpv.Local(dtype="float64")
    private = Contributions(model, rows, make_mechanism(dpv.Privacy(), 0.5, 1.0), engine)
    clipped = private.gradients_at(model.initial(0).expand(2, -1), everyone)
    with pytest.raises(dpv.DpvalueError, match="noise must be given: contributions are released only with noise"):
        private.release(clipped, None, everyone, None)
    free = Contributions(model, rows, make_mechanism(None, 0.5, 0.0), engine)
    assert torch.equal(free.release(clipped, None, everyone, None), clipped)


def contribution(x: Any, y: Any, mechanism: Mechanism, dtype: str, probes: int = 1) -> torch.Tensor:
    """What one party with these records sends before noise: the mean over probes, as in a round."""
    torch_dtype = DTYPES[dtype]
    model = Linear(x.shape[1], 2, "classification", torch_dtype, CPU)
    rows = PublicRows.by_party(x, y, np.array([len(x)]), torch_dtype, CPU)
    generator = torch.Generator().manual_seed(5)
    theta = torch.randn(probes, model.size, generator=generator, dtype=torch.float64).to(torch_dtype)
    found = Contributions(model, rows, mechanism, dpv.Local(dtype=dtype)).gradients_at(
        theta, torch.zeros(probes, dtype=torch.int64)
    )
    return found.mean(0).double()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("unit", ["party", "record"])
@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
def test_sensitivity_holds_for_hostile_data(dtype: str, unit: str, neighbours: str) -> None:
    """One unit's data changed in any way moves a release by at most the sensitivity, NaN and infinity included."""
    mechanism = make_mechanism(dpv.Privacy(unit=unit, neighbours=neighbours), 0.5, 1.0)
    generator = np.random.default_rng(0)
    worst = 0.0
    for trial in range(200):
        size = int(generator.integers(1, 6))
        probes = int(generator.integers(1, 4))
        x, y = generator.normal(0, 3, (size, 4)), generator.integers(2, size=size)
        other_x, other_y = x.copy(), y.copy()
        changed = np.arange(size) if unit == "party" else np.array([generator.integers(size)])
        if trial % 2:  # with two classes the other label turns the gradient around
            other_y[changed] = 1 - y[changed]
        else:
            other_x[changed] = generator.choice(HOSTILE, (len(changed), 4))
        before = contribution(x, y, mechanism, dtype, probes)
        after = contribution(other_x, other_y, mechanism, dtype, probes)
        if neighbours == "zero_out":  # a unit whose contribution is zero: non-finite data counts as zero
            zeroed = x.copy()
            zeroed[changed] = np.nan
            before, after = contribution(zeroed, y, mechanism, dtype, probes), before
        assert after.isfinite().all()
        bound = float(mechanism.sensitivity(torch.tensor([size]))[0])
        change = float((before - after).norm())
        assert change <= bound
        worst = max(worst, change / bound)
    assert worst > 0.9  # the bound is tight: the test would see a sensitivity that is too small by a tenth


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_factored_contributions_are_the_others_for_hostile_data_too(dtype: str, task: str) -> None:
    """The fast path of linear models computes coefficients; their products with the rows are the clipped gradients."""
    generator = np.random.default_rng(2)
    x = np.where(generator.random((60, 4)) < 0.1, generator.choice(HOSTILE, (60, 4)), generator.normal(0, 3, (60, 4)))
    y = generator.integers(2, size=60) if task == "classification" else generator.normal(0, 1, 60)
    model = Linear(4, 2 if task == "classification" else 1, task, DTYPES[dtype], CPU)
    rows = PublicRows.by_party(x, y, np.ones(60, dtype=np.int64), DTYPES[dtype], CPU)
    contributions = Contributions(model, rows, make_mechanism(dpv.Privacy(), 0.5, 1.0), dpv.Local(dtype=dtype))
    random = torch.randn(60, model.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    theta, who = random.to(DTYPES[dtype]), torch.arange(60)
    nothing = torch.zeros(60, 1, model.size, dtype=theta.dtype)
    assert contributions.factored is not None
    known = contributions.factored.prepare(who[:, None], nothing.clone(), nothing[:, 0, 0] + 1)
    found = contributions.factored.clipped_gradients(theta, known).add_to(nothing)[:, 0]
    assert (found.double().norm(dim=1) <= 0.5).all()
    # A gradient that overflows float32 is zero only where it is computed as such; coefficients do not overflow.
    usual = torch.from_numpy(np.abs(np.nan_to_num(x, posinf=0, neginf=0)).max(1) < 1e10)
    torch.testing.assert_close(found[usual], contributions.gradients_at(theta, who)[usual])
    broken = torch.from_numpy(~np.asarray(np.isfinite(x).all(1)))
    assert 5 < int(broken.sum()) < 30
    assert not found[broken].any()


@pytest.mark.parametrize("unit", ["party", "record"])
@pytest.mark.parametrize("sizes", [(1, 0, 1), (2, 0, 1), (0, 2, 1)])
def test_an_empty_party_contributes_nothing_and_never_another_partys_row(unit: str, sizes: tuple[int, ...]) -> None:
    x, y = np.arange(4.0 * sum(sizes)).reshape(-1, 4) + 1, np.arange(sum(sizes)) % 2
    for model in (
        Linear(4, 2, "classification", torch.float64, CPU),
        Network(
            lambda: nn.Linear(4, 2), "classification", "custom", torch.zeros(4, dtype=torch.float64), torch.float64, CPU
        ),
    ):
        rows = PublicRows.by_party(x, y, np.array(sizes), torch.float64, CPU)
        mechanism = make_mechanism(dpv.Privacy(unit=unit), 0.5, 1.0)
        contributions = Contributions(model, rows, mechanism, dpv.Local(dtype="float64"))
        theta, who = model.initial(1).expand(3, -1), torch.arange(3)
        lengths = contributions.gradients_at(theta, who).norm(dim=1)
        assert [length > 0 for length in lengths.tolist()] == [size > 0 for size in sizes]
        assert contributions.read_std.isfinite().all()
        if contributions.factored is not None:
            nothing = torch.zeros(3, 1, model.size, dtype=torch.float64)
            known = contributions.factored.prepare(who[:, None], nothing.clone(), nothing[:, 0, 0] + 1)
            found = contributions.factored.clipped_gradients(theta, known).add_to(nothing)[:, 0]
            torch.testing.assert_close(found, contributions.gradients_at(theta, who))


def test_sensitivities() -> None:
    sizes = torch.tensor([1, 4])
    assert make_mechanism(dpv.Privacy(), 3.0, 1.0).sensitivity(sizes).tolist() == [3.0, 3.0]
    assert make_mechanism(dpv.Privacy(neighbours="replace"), 3.0, 1.0).sensitivity(sizes).tolist() == [6.0, 6.0]
    assert make_mechanism(dpv.Privacy(unit="record"), 3.0, 1.0).sensitivity(sizes).tolist() == [3.0, 0.75]
    both = make_mechanism(dpv.Privacy(unit="record", neighbours="replace"), 3.0, 2.0)
    assert both.sensitivity(sizes).tolist() == [6.0, 1.5]
    assert both.noise_std(sizes).tolist() == [12.0, 3.0]


def test_an_invalid_record_contributes_zero_and_the_number_of_records_stays() -> None:
    mechanism = make_mechanism(dpv.Privacy(unit="record"), 0.5, 1.0)
    generator = np.random.default_rng(3)
    x, y = generator.normal(0, 3, (4, 4)), generator.integers(2, size=4)
    broken = x.copy()
    broken[2, 1] = np.inf
    rest = np.array([0, 1, 3])
    expected = contribution(x[rest], y[rest], mechanism, "float64") * 3 / 4
    torch.testing.assert_close(contribution(broken, y, mechanism, "float64"), expected)


def test_padding_belongs_to_no_other_party() -> None:
    """A party with broken rows does not silence a smaller one that is padded."""
    x = np.array([[np.nan] * 4] * 3 + [[1.0, 2.0, 3.0, 4.0]])
    model = Linear(4, 3, "classification", torch.float64, CPU)
    rows = PublicRows.by_party(x, np.array([0, 1, 2, 1]), np.array([3, 1]), torch.float64, CPU)
    mechanism = make_mechanism(dpv.Privacy(), 0.5, 1.0)
    found = Contributions(model, rows, mechanism, dpv.Local()).gradients_at(
        model.initial(0).expand(2, -1), torch.tensor([0, 1])
    )
    assert float(found[0].norm()) == 0.0
    assert float(found[1].norm()) == pytest.approx(0.5)


class Constant(nn.Module):
    """A model whose outputs, and so gradients, do not depend on its parameters: releases are pure noise."""

    def __init__(self, size: int, outputs: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(size))
        self.outputs = outputs

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.zeros(len(x), self.outputs, dtype=x.dtype, device=x.device) + 0 * self.weight.sum()


@pytest.mark.parametrize("rounds", [1, 2, 10])
@pytest.mark.parametrize("unit", ["party", "record"])
def test_the_final_table_of_replay_has_noise_std_c_over_mu(rounds: int, unit: str) -> None:
    train, test = classification(120, classes=2)
    groups = np.repeat(np.arange(40), 3)
    privacy = dpv.Privacy(epsilon=2.0, delta=1e-4, unit=unit)
    table = dpv.release(
        train, test, groups=groups, model=lambda: Constant(1000, 2), privacy=privacy, noise="fast", seed=rounds,
        schedule=dpv.Schedule("replay", rounds=rounds, probes=2), clip=0.7, learning_rate=0.1, progress=False,
        projection=None,
    )  # fmt: skip
    mu = dpv.privacy.accounting.mu_of_budget(2.0, 1e-4)
    std = 0.7 / mu / (3 if unit == "record" else 1)
    assert table.guarantee.releases == rounds
    np.testing.assert_allclose(table.noise_std, std, rtol=1e-6)
    sample = table.rows.flatten().numpy().astype(np.float64)
    assert stats.kstest(sample, "norm", args=(0, std)).pvalue > 1e-3
    for wrong in (0.92, 1.08):
        assert stats.kstest(sample, "norm", args=(0, std * wrong)).pvalue < 1e-3


@pytest.mark.parametrize("schedule", ["replay", "running-mean"])
def test_the_noise_of_each_party_fits_its_number_of_records(schedule: str) -> None:
    train, test = classification(13, classes=2)
    groups = np.repeat([0, 1, 2], [1, 3, 9])
    table = dpv.release(
        train, test, groups=groups, model=lambda: Constant(4000, 2), privacy=dpv.Privacy(2.0, unit="record"),
        noise="fast", schedule=schedule, permutations=4, clip=0.7, learning_rate=0.1, progress=False,
        projection=None,
    )  # fmt: skip
    np.testing.assert_allclose(table.noise_std[0] / table.noise_std, [1, 3, 9])
    np.testing.assert_allclose(table.rows.std(1), table.noise_std, rtol=0.06)  # five standard deviations


def test_sums_over_many_records_and_probes_stay_within_the_sensitivity() -> None:
    """In float32 the share of one record, or the excess of many probes, would drown in the rounding of the sum."""
    generator = np.random.default_rng(0)
    size = 20_000
    x, y = generator.normal(0, 3, (1, 4)) + generator.normal(0, 1e-3, (size, 4)), np.zeros(size, dtype=np.int64)
    mechanism = make_mechanism(dpv.Privacy(unit="record"), 0.5, 1.0)
    broken = x.copy()
    broken[7] = np.nan
    change = (contribution(x, y, mechanism, "float32") - contribution(broken, y, mechanism, "float32")).norm()
    assert float(change) <= 0.5 / size
    table = dpv.release(
        (x[:2].copy(), np.array([0, 0])), (x[:20], np.arange(20) % 2), privacy=None, clip=0.01, learning_rate=1e-6,
        schedule=dpv.Schedule("replay", rounds=2, probes=3000), progress=False,
    )  # fmt: skip
    assert (table.rows.double().norm(dim=1) <= 0.01).all()


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("schedule", ["replay", "independent"])
def test_a_release_less_its_clipped_gradient_is_gaussian(neighbours: str, schedule: str) -> None:
    train, test = classification(300, classes=3, features=20)
    privacy = dpv.Privacy(epsilon=4.0, delta=1e-4, neighbours=neighbours)
    once = dpv.Schedule("replay", rounds=1) if schedule == "replay" else dpv.Schedule("independent")
    settings: dict[str, Any] = {
        "schedule": once, "permutations": 1, "clip": 0.3, "learning_rate": 1e-9, "seed": 11, "progress": False,
        "engine": dpv.Local(dtype="float64"), "projection": None,
    }  # fmt: skip
    noisy = dpv.release(train, test, privacy=privacy, noise="fast", **settings)
    exact = dpv.release(train, test, privacy=None, **settings)
    std = 0.3 * (2 if neighbours == "replace" else 1) / dpv.privacy.accounting.mu_of_budget(4.0, 1e-4)
    difference = (noisy.rows - exact.rows).flatten().numpy()
    assert stats.kstest(difference, "norm", args=(0, std)).pvalue > 1e-3
    for wrong in (0.92, 1.08):
        assert stats.kstest(difference, "norm", args=(0, std * wrong)).pvalue < 1e-3
    per_coordinate = (noisy.rows - exact.rows).std(0)
    assert ((per_coordinate / std - 1).abs() < 0.2).all()  # 300 draws: five standard deviations of their spread
