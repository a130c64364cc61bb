"""Compiled inner loops: the same as torch's but for rounding, the same bits in any threads, and not needed."""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
import pytest
import torch

import dpvalue as dpv
from dpvalue import compiled
from dpvalue.data.rows import PublicRows
from dpvalue.models import Linear
from dpvalue.models.linear import mean_log_sum_exp
from dpvalue.party import interleaved
from dpvalue.party.contributions import Contributions
from dpvalue.party.interleaved import InterleavedReleases
from dpvalue.privacy import noise as noise_module
from dpvalue.privacy.mechanism import make_mechanism
from dpvalue.privacy.noise import FastNoise
from tests.datasets import classification, regression
from tests.privacy.test_mechanism import HOSTILE

pytest.importorskip("numba")  # the extra dpvalue[fast]; make test has it
from dpvalue.privacy import normal_kernel
from dpvalue.privacy.normal_kernel import Normals

CPU = torch.device("cpu")


@pytest.mark.parametrize("seed", [0, 1, 2**31 + 5, 2**32 + 7, 2**61 + 3])
@pytest.mark.parametrize("sizes", [(16,), (17, 31, 16), (624, 625, 2048), (16_170, 2049, 40_000)])
def test_normal_numbers_are_torchs(seed: int, sizes: tuple[int, ...]) -> None:
    """The same stream, over several tensors, whether a multiple of sixteen or not."""
    generator, ours = torch.Generator().manual_seed(seed), Normals(seed)
    for size in sizes:
        expected = torch.empty(size).normal_(generator=generator)
        torch.testing.assert_close(ours.fill(torch.empty(size)), expected, rtol=0, atol=4e-6)


def test_normal_numbers_are_exact_to_float32_at_their_extremes() -> None:
    """Radii and angles beside float64's: at all exponents of 1 - u, and around the edges of quarters of a turn."""
    u = np.concatenate([2.0 ** -np.arange(1, 25), 1 - 2.0 ** -np.arange(1, 25), [0.0], np.arange(0, 1, 2.0**-14)])
    u = (np.rint(u * 2**24) / 2**24).astype(np.float32)
    radii, exact = u.copy(), u.astype(np.float64)
    normal_kernel._radii(radii, radii.view(np.int32), np.empty_like(radii))
    np.testing.assert_allclose(radii, np.sqrt(-2 * np.log1p(-exact)), rtol=3e-7, atol=0)
    first, second = np.empty_like(u), u.copy()
    normal_kernel._around(np.ones_like(u), second, first)
    np.testing.assert_allclose(first, np.cos(2 * np.pi * exact), rtol=0, atol=3e-7)
    np.testing.assert_allclose(second, np.sin(2 * np.pi * exact), rtol=0, atol=3e-7)


def test_normal_numbers_refuse_what_torch_draws_in_another_way() -> None:
    for wrong in (torch.empty(15), torch.empty(16, dtype=torch.float64)):
        with pytest.raises(ValueError, match="16 or more float32 numbers"):
            Normals(1).fill(wrong)


def test_another_torch_draws_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    assert normal_kernel.draws_as_torch()
    like, drawn = torch.zeros(100), torch.empty(300, 100)
    usual = FastNoise(3).stream(5, like, "gaussian", 0).fill(drawn.clone())
    ours = FastNoise(3).compiled().stream(5, like, "gaussian", 0).fill(drawn.clone())
    assert not torch.equal(ours, usual)
    torch.testing.assert_close(ours, usual, rtol=0, atol=4e-6)
    monkeypatch.setattr(normal_kernel, "draws_as_torch", lambda: False)
    assert torch.equal(FastNoise(3).compiled().stream(5, like, "gaussian", 0).fill(drawn), usual)
    monkeypatch.undo()
    monkeypatch.setattr(normal_kernel, "Normals", lambda seed: Normals(seed + 1))
    assert not normal_kernel.draws_as_torch.__wrapped__()


@pytest.mark.parametrize("rows", [1, 7, 8, 1003])
@pytest.mark.parametrize("scale", [0.1, 5.0, 17.0, 100.0])
def test_the_compiled_loss_is_torchs(rows: int, scale: float) -> None:
    """Up to outputs of 60 in compiled code, beyond them by torch."""
    outputs = torch.randn(5, 3, rows, generator=torch.Generator().manual_seed(1)) * scale
    if scale < 20:
        outputs[0, 0, 0], outputs[1, :, 0] = 59.9, -59.9
        outputs.clamp_(-59.9, 59.9)
    expected = outputs.double().logsumexp(1).mean(-1)
    torch.testing.assert_close(mean_log_sum_exp(outputs.clone(), compiled=True), expected, rtol=3e-7, atol=3e-7)
    assert torch.equal(mean_log_sum_exp(outputs * torch.nan, compiled=True).isnan(), torch.ones(5, dtype=torch.bool))


def valued(monkeypatch: pytest.MonkeyPatch, how: str, **settings: Any) -> tuple[dpv.Result, bool]:
    """A run, in compiled code (how = "1") or not ("0"), and whether it was."""
    seen: list[bool] = []
    original = InterleavedReleases.run

    def run(self: InterleavedReleases, *arguments: Any) -> Any:
        seen.append(self.compiled)
        return original(self, *arguments)

    with monkeypatch.context() as patch:
        patch.setenv("DPVALUE_COMPILED", how)
        patch.setattr(InterleavedReleases, "run", run)
        defaults: dict[str, Any] = {
            "privacy": dpv.Privacy(epsilon=20.0, delta=1e-3), "clip": 0.8, "learning_rate": 0.15, "noise": "fast",
            "seed": 7, "permutations": 24, "projection": None, "progress": False, "semivalues": ("shapley", "banzhaf"),
        }  # fmt: skip
        result = dpv.value(**{**defaults, **settings})
    return result, all(seen) and bool(seen)


SCHEDULES = [
    dpv.Schedule("running-mean", burn_in=0.5), dpv.Schedule("running-mean", block=5), dpv.Schedule("independent"),
    dpv.Schedule("optimal", block=3), dpv.Schedule("decaying", burn_in=0.25, block=7),
]  # fmt: skip


@pytest.mark.parametrize("schedule", SCHEDULES, ids=str)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize("model", ["logistic", "linear"])
def test_compiled_walks_are_torchs(
    model: str, dtype: str, schedule: dpv.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    train, test = classification(30) if model == "logistic" else regression(30)
    settings = {"model": model, "schedule": schedule, "engine": dpv.Local(device="cpu", dtype=dtype)}
    monkeypatch.setattr(noise_module, "_NUMBERS_AT_ONCE", {"cpu": 2**7})  # so that a walk is of several stretches
    monkeypatch.setattr(interleaved, "_COMPILED_NUMBERS", 2**8)
    for privacy in (dpv.Privacy(epsilon=20.0, delta=1e-3), None):
        given = {**settings, "parties": train, "utility": test, "privacy": privacy, "clip": 0.8 if privacy else "auto"}
        (fast, used), (slow, unused) = (valued(monkeypatch, how, **given) for how in ("1", "0"))
        assert used
        assert not unused
        close = 1e-5 if dtype == "float32" else 1e-12
        torch.testing.assert_close(fast.table.rows, slow.table.rows, rtol=0, atol=close * float(slow.table.rows.max()))
        for name, values in slow.values.items():
            np.testing.assert_allclose(fast.values[name], values, rtol=0, atol=20 * close * np.abs(values).max())


def test_threads_do_not_change_a_bit(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = classification(40)
    monkeypatch.setattr("dpvalue.party.contributions._PART_NUMBERS", 64)
    given = {"parties": train, "utility": test, "schedule": dpv.Schedule("running-mean", block=6)}
    one, several = (valued(monkeypatch, "1", **given, engine=dpv.Local("cpu", threads=count))[0] for count in (1, 3))
    assert torch.equal(one.table.rows, several.table.rows)
    np.testing.assert_array_equal(one.values["shapley"], several.values["shapley"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize("task", ["classification", "regression"])
def test_compiled_contributions_are_the_others_for_hostile_data_too(dtype: torch.dtype, task: str) -> None:
    """As `test_factored_contributions_are_the_others_for_hostile_data_too`: clipped, and zero where they must be."""
    generator = np.random.default_rng(2)
    x = np.where(generator.random((60, 4)) < 0.1, generator.choice(HOSTILE, (60, 4)), generator.normal(0, 3, (60, 4)))
    y = generator.integers(2, size=60) if task == "classification" else generator.normal(0, 1, 60)
    model = Linear(4, 2 if task == "classification" else 1, task, dtype, CPU)
    rows = PublicRows.by_party(x, y, np.ones(60, dtype=np.int64), dtype, CPU)
    contributions = Contributions(model, rows, make_mechanism(dpv.Privacy(), 0.5, 1.0), dpv.Local(dtype="float64"))
    assert contributions.factored is not None
    theta = torch.randn(60, model.size, generator=torch.Generator().manual_seed(0), dtype=torch.float64).to(dtype)
    theta[::7] *= 1e30  # models may be far off as well, and outputs overflow
    nothing, who = torch.zeros(60, 1, model.size, dtype=dtype), torch.arange(60)[:, None]
    weights = torch.tensor([[1.0, 0.0]], dtype=dtype).expand(60, 2).contiguous()
    found = contributions.factored.clipped_gradients_compiled(theta, who, nothing, torch.zeros_like(theta), weights)
    known = contributions.factored.prepare(who, nothing.clone(), weights[:, 0])
    expected = contributions.factored.clipped_gradients(theta, known)
    torch.testing.assert_close(found.coefficients, expected.coefficients, rtol=2e-5, atol=2e-7)
    clipped = found.add_to(nothing)[:, 0]
    assert clipped.isfinite().all()
    assert (clipped.double().norm(dim=1) <= 0.5).all()
    assert (clipped.double().norm(dim=1) > 0.499).any()


def test_small_jobs_are_torchs_and_numba_is_not_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("DPVALUE_COMPILED", raising=False)
    assert not compiled.compiled_pays(19_999, 199_999_999)
    assert compiled.compiled_pays(20_000, 1)
    assert compiled.compiled_pays(1, 200_000_000)
    monkeypatch.setenv("DPVALUE_COMPILED", "0")
    assert not compiled.compiled_pays(20_000, 200_000_000)
    monkeypatch.setenv("DPVALUE_COMPILED", "1")
    assert compiled.compiled_pays(1, 1)
    compiled._loads.cache_clear()
    monkeypatch.setitem(sys.modules, "numba", None)
    try:
        assert not compiled.compiled_pays(20_000, 200_000_000)
    finally:
        compiled._loads.cache_clear()


def test_other_models_noise_and_rules_are_not_for_compiled_walks(monkeypatch: pytest.MonkeyPatch) -> None:
    train, test = classification(12)
    for other in ({"noise": "secure"}, {"clip_rule": "normalise"}, {"groups": np.arange(12) // 2}):
        given = {"parties": train, "utility": test, "schedule": "running-mean", "permutations": 4, **other}
        assert not valued(monkeypatch, "1", **given)[1]
