"""Noise: its law, where it comes from, and the grid that it is added on."""

from __future__ import annotations

import os
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import dpvalue as dpv
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.mechanism import make_grid, make_mechanism
from dpvalue.privacy.noise import ChaChaWords, FastNoise, NoiseSource, NoiseStream, SecureNoise, piece_rows
from tests.datasets import classification

CPU = torch.device("cpu")
DTYPES = {"float32": torch.float32, "float64": torch.float64}


@pytest.mark.parametrize("source", [SecureNoise(), FastNoise(3)], ids=["secure", "fast"])
@pytest.mark.parametrize("law", ["laplace", "gaussian"])
def test_noise_has_its_law_and_scale_in_every_row(source: NoiseSource, law: str) -> None:
    like = torch.zeros(2, dtype=torch.float64)
    drawn = source.stream(0, like, law, 21).fill(torch.empty(40_000, 2, dtype=torch.float64)).numpy()
    if source.on_grid:
        assert (drawn == np.rint(drawn)).all()
        drawn = drawn / 2**21
    name = "laplace" if law == "laplace" else "norm"
    for column in drawn.T:
        assert stats.kstest(column, name).pvalue > 1e-4
        assert stats.kstest(column, name, args=(0, 1.1)).pvalue < 1e-3
    assert abs(np.corrcoef(drawn.T)[0, 1]) < 0.04
    assert abs(np.corrcoef(drawn[:-1, 0], drawn[1:, 0])[0, 1]) < 0.04


def test_secure_noise_never_repeats() -> None:
    source = SecureNoise()
    like = torch.zeros(500)
    first, second = (
        source.stream(0, like, "gaussian", 20).fill(torch.empty(200, 500, dtype=torch.float64)) for _ in range(2)
    )
    assert not torch.equal(first, second)
    assert abs(float(np.corrcoef(first.flatten(), second.flatten())[0, 1])) < 0.02


def test_words_are_chacha20s_and_a_key_is_replaced_before_its_counter_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The key stream of a key of zeros is in RFC 7539, A.1."""
    keys: list[int] = []

    def zeros(bits: int) -> int:
        keys.append(bits)
        return 0

    monkeypatch.setattr("dpvalue.privacy.noise.secrets.randbits", zeros)
    words = ChaChaWords()
    assert np.concatenate([words(1), words(1)]).tobytes().hex() == "76b8e0ada0f13d90405d6ae55386bd28"
    assert keys == [256]
    monkeypatch.setattr("dpvalue.privacy.noise._WORDS_OF_A_KEY", 4)
    words = ChaChaWords()
    assert words(3).tobytes() == words(3).tobytes()  # the second one is the beginning of the next key's, here the same
    assert keys == [256, 256, 256]


@pytest.mark.parametrize("when", ["before a draw", "after a draw"])
def test_a_stream_is_refused_in_a_forked_child(when: str) -> None:
    for source in (SecureNoise(), FastNoise(3)):
        stream = source.stream(0, torch.zeros(3), "gaussian", 20)
        like = torch.empty(4, 3, dtype=torch.float64 if source.on_grid else torch.float32)
        if when == "after a draw":
            stream.fill(like)
        child = os.fork()
        if child == 0:  # only _exit: the test runner must not go on in the child
            try:
                stream.fill(like)
            except dpv.DpvalueError:
                os._exit(7)
            os._exit(1)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
        stream.fill(like)  # the parent goes on


def test_streams_asked_for_after_a_fork_differ() -> None:
    source = SecureNoise()
    draws = []
    for _ in range(2):
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            drawn = source.stream(0, torch.zeros(8), "gaussian", 20).fill(torch.empty(1, 8, dtype=torch.float64))
            os.write(writer, drawn.numpy().tobytes())
            os._exit(0)
        os.close(writer)
        draws.append(os.read(reader, 64))
        os.close(reader)
        os.waitpid(child, 0)
    assert len(draws[0]) == 64
    assert draws[0] != draws[1]


@pytest.mark.parametrize("law", ["laplace", "gaussian"])
@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize(("size", "probes"), [(1, 1), (400, 1), (8000, 20)])
def test_a_grid_is_fine_and_its_noise_wide(law: str, neighbours: str, size: int, probes: int) -> None:
    mechanism = make_mechanism(dpv.Privacy(neighbours=neighbours), 0.3, 5.0, law=law)
    grid = make_grid(mechanism, size, probes)
    sensitivity = 0.3 * (2 if neighbours == "replace" else 1)
    scale = 5.0 * sensitivity
    assert grid.step * size**0.5 <= 0.3 / 1000
    assert grid.bits >= 20
    real = grid.step / grid.probes * 2**grid.bits
    assert real == pytest.approx(scale, rel=1e-8)
    # In steps: a unit moves the sum by at most s, and that is at most 1/5 of the scale, rounding included.
    s = sensitivity / grid.step * probes
    width = 2**grid.bits if law == "laplace" else (4**grid.bits - 9) ** 0.5
    assert s / width <= 1 / 5.0


@pytest.mark.parametrize("dtype", DTYPES)
def test_rounding_never_makes_a_vector_longer(dtype: str) -> None:
    generator = torch.Generator().manual_seed(1)
    for clip, multiplier in ((0.3, 0.2), (1e-6, 40.0), (77.0, 3.0)):
        mechanism = make_mechanism(dpv.Privacy(), clip, multiplier)
        grid = make_grid(mechanism, 30, 1)
        clipped = mechanism.apply_clipping(
            (torch.randn(2000, 30, dtype=torch.float64, generator=generator) * clip).to(DTYPES[dtype])
        )
        steps = grid.round(clipped)
        assert (steps == steps.round()).all()
        squares = (steps.to(torch.int64) ** 2).sum(1)
        assert (squares <= grid.longest).all()
        assert grid.longest <= (clip / grid.step) ** 2
        assert (steps.abs() <= clipped.double().abs() / grid.step).all()
        assert float((steps * grid.step - clipped).norm(dim=1).max()) <= clip / 1000
        longer = grid.round(clipped * 1.5)  # had clipping failed, nothing would leave
        assert (longer[clipped.double().norm(dim=1) > 0.99 * clip] == 0).all()


@pytest.mark.parametrize("bad", [float("nan"), float("inf"), -float("inf"), 1e300, 1e30, 4e9, 2.0])
def test_nothing_that_is_too_long_passes_the_grid_even_if_clipping_failed(bad: float) -> None:
    grid = make_grid(make_mechanism(dpv.Privacy(), 1.0, 3.0), 3, 1)
    assert (grid.round(torch.tensor([[bad, 0.0, 0.0], [bad, bad, bad]], dtype=torch.float64)) == 0).all()
    whole = 2.0**32 * grid.step  # its square in steps is 2^64, which is 0 in 64 bits
    assert (grid.round(torch.tensor([whole, 0.0, 0.0], dtype=torch.float64)) == 0).all()


@pytest.mark.parametrize("unit", ["party", "record", "person"])
@pytest.mark.parametrize(
    "schedule", [dpv.Schedule("replay", rounds=3, probes=5), dpv.Schedule("running-mean")], ids=str
)
def test_a_secure_release_is_a_whole_number_of_steps_around_the_clipped_gradients(
    unit: str, schedule: dpv.Schedule, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Every release lies on its grid; with the noise taken out it is the release without privacy, but for rounding."""
    train, test = classification(12)
    seen: list[tuple[torch.Tensor, Any, torch.Tensor]] = []
    original = Contributions.release

    def spy(self: Contributions, clipped: Any, noise: Any, who: Any, grid: Any) -> Any:
        found = original(self, clipped, noise, who, grid)
        units = self.units[who] if self.mechanism.per_unit else torch.ones_like(who)
        if grid is not None:
            seen.append(((found / (grid.step / grid.probes) * units[:, None]), clipped + noise, clipped))
        return found

    monkeypatch.setattr(Contributions, "release", spy)
    dpv.release(
        train, test, groups=np.repeat([0, 1, 2], [2, 4, 6]), persons=np.arange(12) // 2, schedule=schedule,
        permutations=4, privacy=dpv.Privacy(unit=unit, mechanism="gaussian"), projection=None, clip=0.5,
        learning_rate=0.1, progress=False, engine=dpv.Local(dtype="float64"),
    )  # fmt: skip
    assert len(seen) == (3 if schedule.kind == "replay" else 12)
    for released, steps, clipped in seen:
        torch.testing.assert_close(released, steps, rtol=1e-12, atol=1e-6)
        assert (clipped == clipped.round()).all()


def test_secure_and_fast_noise_give_the_same_values_but_for_the_noise() -> None:
    """A budget so large that little noise is left: the rest is rounding to the grid."""
    train, test = classification(12)
    for unit in ("party", "record", "person"):
        settings: dict[str, Any] = {
            "groups": np.repeat([0, 1, 2], [2, 4, 6]), "persons": np.arange(12) // 2, "clip": 0.5, "learning_rate": 0.1,
            "privacy": dpv.Privacy(1e5, unit=unit, mechanism="gaussian"), "projection": None, "progress": False,
        }  # fmt: skip
        secure, fast = (dpv.release(train, test, noise=noise, **settings) for noise in ("secure", "fast"))
        noise = 8 * 15**0.5 * float(fast.noise_std.max())
        assert noise < 0.05
        assert float((secure.rows - fast.rows).norm(dim=1).max()) <= 0.5 / 1000 + noise
    with pytest.raises(dpv.DpvalueError, match="too small for exact sums"):
        dpv.release(train, test, **{**settings, "privacy": dpv.Privacy(1e8, mechanism="gaussian")})


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("size", [3, 15, 385, 40_000])
def test_how_a_stream_is_cut_does_not_change_its_numbers(dtype: str, size: int) -> None:
    source: NoiseSource = FastNoise(3)
    like = torch.zeros(size, dtype=DTYPES[dtype])

    def draw(stream: NoiseStream, *counts: int) -> torch.Tensor:
        return torch.cat([stream.fill(like.new_empty(count, size)) for count in counts])

    whole, parts = source.stream(1, like, "gaussian", 0), source.stream(1, like, "gaussian", 0)
    piece = piece_rows(size, CPU)
    assert torch.equal(draw(whole, piece, piece, 9), draw(parts, 1, 7, 0, piece, 2 * piece + 9 - piece - 8))
    assert torch.equal(draw(whole, 2), draw(parts, 2))
    first, second = (draw(source.stream(release, like, "gaussian", 0), 1) for release in (1, 2))
    assert not torch.equal(first, second)


def test_secure_noise_is_the_default_and_the_seed_does_not_repeat_it() -> None:
    train, test = classification(10)
    settings: dict[str, Any] = {"clip": 1.0, "learning_rate": 0.1, "seed": 5, "progress": False}
    first = dpv.release(train, test, **settings)
    second = dpv.release(train, test, **settings)
    assert not torch.equal(first.rows, second.rows)
    assert "imulation" not in str(first.guarantee)
    fast = dpv.release(train, test, noise="fast", **settings)
    assert "Simulation: anyone who knows the seed can remove the noise" in str(fast.guarantee)
