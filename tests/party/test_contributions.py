"""Privacy per record and per person: what is clipped together, what it is divided by, and what it all adds up to."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch
from scipy import stats
from sklearn.datasets import load_breast_cancer
from sklearn.preprocessing import StandardScaler

import dpvalue as dpv
from dpvalue.data.parties import Parties
from dpvalue.models import Linear
from dpvalue.party.contributions import Contributions
from dpvalue.privacy import accounting, laws
from dpvalue.privacy.guarantees import guarantee
from dpvalue.privacy.mechanism import Scale, make_mechanism
from tests.datasets import classification

EXACT = dpv.Local(dtype="float64")
CPU = torch.device("cpu")
QUIET: dict[str, Any] = {"noise": "fast", "progress": False, "engine": EXACT}


def contributions(parties: Parties, privacy: dpv.Privacy, clip: float, scale: Scale = Scale()) -> Any:  # noqa: B008
    """The clipped contributions of all parties at some model, and the mechanism's side of it."""
    from dpvalue.data.encoding import fit_encoding

    encoding = fit_encoding(np.asarray(parties.X), np.arange(len(parties.y)) % 3, "classification", None)
    rows = parties.encode(encoding, torch.float64, CPU, privacy)
    model = Linear(4, 3, "classification", torch.float64, CPU)
    made = Contributions(model, rows, make_mechanism(privacy, clip, 1.0, scale=scale), EXACT)
    theta = torch.linspace(-1, 1, 15, dtype=torch.float64).expand(parties.n, -1)
    return made.gradients_at(theta, torch.arange(parties.n)), made


def by_hand(parties: Parties, persons: Any, groups: Any, clip: float) -> Any:
    """Person by person in plain NumPy: mean of the person's gradients, clipped, over the number of persons."""
    X, y, W = np.c_[parties.X, np.ones(len(parties.y))], np.asarray(parties.y), np.linspace(-1, 1, 15).reshape(3, 5)
    found = []
    for group in np.unique(groups):
        people = np.unique(persons[groups == group])
        total = np.zeros(15)
        for person in people:
            gradients = []
            own = (groups == group) & (persons == person)
            for x, label in zip(X[own], y[own], strict=True):
                p = np.exp(W @ x) / np.exp(W @ x).sum()
                gradients.append(np.outer(p - np.eye(3)[label], x).ravel())
            mean = np.mean(gradients, axis=0)
            total += mean * min(1.0, clip / np.linalg.norm(mean))
        found.append(total / len(people))
    return np.array(found)


@pytest.fixture(name="people")
def made_people() -> tuple[Parties, Any, Any]:
    (X, y), _ = classification(60)
    generator = np.random.default_rng(5)
    groups, persons = generator.integers(4, size=60), generator.integers(9, size=60)
    return Parties(X, y, groups, persons + 100 * groups), groups, persons + 100 * groups


def test_a_persons_records_are_combined_clipped_together_and_averaged_over_persons(people: Any) -> None:
    parties, groups, persons = people
    found, made = contributions(parties, dpv.Privacy(unit="person"), 0.4)
    np.testing.assert_allclose(found, by_hand(parties, persons, groups, 0.4), atol=1e-9)
    counts = [len(np.unique(persons[groups == group])) for group in range(4)]
    assert made.units.tolist() == counts == parties.units("person").tolist()
    np.testing.assert_allclose(made.read_std, 0.4 / np.array(counts))
    assert parties.units("record").tolist() == np.bincount(groups).tolist()
    assert parties.units("party").tolist() == [1, 1, 1, 1]


@pytest.mark.parametrize("neighbours", ["zero_out", "replace"])
@pytest.mark.parametrize("unit", ["record", "person"])
def test_one_unit_moves_a_release_by_no_more_than_its_sensitivity(people: Any, unit: str, neighbours: str) -> None:
    """Whatever one record or person becomes, huge, missing or of another class, and with any number of records."""
    parties, groups, persons = people
    privacy = dpv.Privacy(unit=unit, neighbours=neighbours)
    clip, scale = 0.4, Scale(centre=0.1)
    before, made = contributions(parties, privacy, clip, scale)
    bound = made.mechanism.sensitivity(made.units)
    generator = np.random.default_rng(6)
    largest = 0.0
    for trial in range(60):
        row = int(generator.integers(60))
        moved = persons == persons[row] if unit == "person" else np.arange(60) == row
        X, y = np.array(parties.X), np.array(parties.y)
        X[moved] = generator.normal(0, 10.0 ** generator.integers(-3, 6), (moved.sum(), 4))
        y[moved] = generator.integers(3, size=moved.sum())
        after = contributions(Parties(X, y, groups, persons), privacy, clip, scale)[0]
        change = torch.linalg.vector_norm(after - before, dim=1)
        others = np.arange(4) != groups[row]
        assert (change[others] == 0).all(), trial
        # From one contribution to another is a step of replace; from the old one to zero is at most half as far.
        assert float(change[groups[row]]) <= float(bound[groups[row]]) * (1 if neighbours == "replace" else 2)
        largest = max(largest, float(change[groups[row]] / bound[groups[row]]))
    assert largest > 0.8  # the bound is not idle


def test_bad_records_count_as_zero_and_leave_the_divisor(people: Any) -> None:
    """A record without a number is silent; the person's other records speak, and M stays."""
    parties, groups, persons = people
    X = np.array(parties.X)
    row = int(np.flatnonzero(np.bincount(persons)[persons] > 1)[0])
    group, mates = groups[row], np.flatnonzero((persons == persons[row]) & (np.arange(60) != row))
    before, made = contributions(parties, dpv.Privacy(unit="person"), 1e6)
    pair = np.array([row, mates[0]])
    alone = Parties(X[pair], np.asarray(parties.y)[pair], np.array(["a", "b"]))
    gradient = by_hand(alone, np.arange(2), alone.groups, 1e6)[0]
    X[row, 2] = np.nan
    after, _ = contributions(Parties(X, parties.y, groups, persons), dpv.Privacy(unit="person"), 1e6)
    assert (after[np.arange(4) != group] == before[np.arange(4) != group]).all()
    # What is lost is the record's share of its person's mean, over the persons.
    lost = gradient / (1 + len(mates)) / float(made.units[group])
    np.testing.assert_allclose((before[group] - after[group]).numpy(), lost, atol=1e-12)


def test_a_person_counts_in_the_first_parties_by_name(people: Any) -> None:
    """In others it is as if its rows were not there; the numbers of persons stay."""
    parties, groups, _ = people
    persons = np.arange(60)
    persons[:30] = 0
    found, made = contributions(Parties(parties.X, parties.y, groups, persons), dpv.Privacy(unit="person"), 0.4)
    assert made.units.tolist() == [len(np.unique(persons[groups == group])) for group in range(4)]
    elsewhere = (persons == 0) & (groups > 0)
    X = np.array(parties.X)
    X[elsewhere] = np.nan
    without, _ = contributions(Parties(X, parties.y, groups, persons), dpv.Privacy(unit="person"), 0.4)
    assert torch.equal(found, without)
    both = dpv.Privacy(unit="person", parties_per_person=2)
    second, _ = contributions(Parties(parties.X, parties.y, groups, persons), both, 0.4)
    assert (second != found).any(1).tolist() == [False, True, False, False]


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_a_person_in_several_parties_pays_for_all_of_them(law: str) -> None:
    privacy = dpv.Privacy(1.0, 1e-5, unit="person", parties_per_person=3)
    alone = dpv.Privacy(1.0, 1e-5, unit="person")
    ratio = privacy.noise_multiplier(2, 10, law) / alone.noise_multiplier(2, 10, law)
    assert ratio == pytest.approx(3.0 if law == "laplace" else 3**0.5)
    multiplier = privacy.noise_multiplier(1, 10, law)
    together = laws.total_epsilon([(law, multiplier, 3)], 1e-5)
    assert together <= 1.0 + 1e-6
    assert laws.total_epsilon([(law, multiplier * 0.98, 3)], 1e-5) > 1.0


@pytest.mark.parametrize("law", ["gaussian", "laplace"])
def test_a_guarantee_counts_every_party_of_a_person(law: str) -> None:
    """Three parties, two runs: closed forms for mu and epsilon, simulation for the advantage."""
    privacy = dpv.Privacy(1.0, 1e-5, unit="person", parties_per_person=3)
    multiplier = privacy.noise_multiplier(1, 10, law)
    spent = guarantee(privacy, multiplier, 1, 1.0, False, law)
    if law == "gaussian":
        mu = 3**0.5 / multiplier
        assert spent.mu == pytest.approx(mu)
        assert spent.advantage == pytest.approx(accounting.gaussian_advantage(mu))
        assert dpv.privacy.total_epsilon([spent, spent], 1e-5) == pytest.approx(
            accounting.epsilon_of_mu(2**0.5 * mu, 1e-5), rel=1e-6
        )
    else:
        assert spent.advantage == pytest.approx(accounting.laplace_advantage(1.0, 3))
        assert (spent.advantage or 1.0) < accounting.laplace_advantage(1.0)
        assert dpv.privacy.total_epsilon([spent, spent], 0.0) == pytest.approx(2.0)


def test_what_is_missing_contributes_zero_whatever_the_centre() -> None:
    """A bad record, a person with bad records only and an empty party: nothing, and not minus the centre."""
    from dpvalue.data.rows import PublicRows

    model = Linear(1, 2, "classification", torch.float64, CPU)
    x, y, usable = np.array([[np.nan], [np.nan], [1.0]]), np.array([0, 0, 1]), np.array([False, False, True])
    pair, units = np.array([0, 0, 1]), np.array([1, 1])
    people = PublicRows.by_person(x, y, usable, (np.array([0, 1]), pair), units, torch.float64, CPU)
    cases: list[tuple[str, PublicRows]] = [("person", people)]
    for unit, sizes in (("record", [2, 1]), ("party", [2, 1]), ("party", [0, 3])):
        cases.append((unit, PublicRows.by_party(x, y, np.array(sizes), torch.float64, CPU, usable)))
    for unit, rows in cases:
        mechanism = make_mechanism(dpv.Privacy(unit=unit), 0.4, 1.0, scale=Scale(centre=0.3))
        found = Contributions(model, rows, mechanism, EXACT).gradients_at(
            torch.zeros(2, 4, dtype=torch.float64), torch.tensor([0, 1])
        )
        assert torch.equal(found[0], torch.zeros(4, dtype=torch.float64)), unit
        assert found[1].any(), unit


def test_persons_must_be_known_and_count_in_no_more_parties_than_accounted_for(people: Any) -> None:
    parties, groups, _ = people
    test = classification(60)[1]
    privacy = dpv.Privacy(unit="person")
    with pytest.raises(dpv.DpvalueError, match="unit='person' needs the person of each row"):
        dpv.value(Parties(parties.X, parties.y, groups), test, privacy=privacy, **QUIET)
    everywhere = np.arange(60)
    everywhere[:20] = 0
    spread = Parties(parties.X, parties.y, groups, everywhere)
    assert dpv.value(spread, test, privacy=privacy, **QUIET).guarantee.parties_per_person == 1  # and stops nobody
    result = dpv.value(spread, test, privacy=dpv.Privacy(unit="person", parties_per_person=4), **QUIET)
    assert "All records of each person, in at most 4 parties, are protected" in str(result.guarantee)
    assert result.guarantee.parties_per_person == 4
    with pytest.raises(dpv.DpvalueError, match="persons must be one label per row"):
        Parties(parties.X, parties.y, groups, [1, 2])
    with pytest.raises(dpv.DpvalueError, match="persons must be given to Parties itself"):
        dpv.value(parties, test, persons=everywhere, **QUIET)


def test_ids_may_be_a_column() -> None:
    (X, y), (X_test, y_test) = classification(40)
    frame = pd.DataFrame(X, columns=list("abcd")).assign(label=y, site=np.arange(40) % 4, patient=np.arange(40) // 8)
    public = pd.DataFrame(X_test, columns=list("abcd")).assign(label=y_test, patient=0)
    privacy = dpv.Privacy(2.0, unit="person", parties_per_person=4)
    settings: dict[str, Any] = {"privacy": privacy, "target": "label", "groups": "site", "persons": "patient", **QUIET}
    result = dpv.value(frame, public, **settings)
    assert result.table.n == 4
    assert result.table.encoding.columns == tuple("abcd")
    planned = dpv.plan(frame, public, **{k: v for k, v in settings.items() if k not in ("noise", "progress")})
    assert planned.sizes.units == 5
    assert planned.expected_auc == result.table.expected_auc


def test_the_noise_of_persons_has_the_scale_of_their_number() -> None:
    train, test = classification(300, classes=2, features=20)
    groups, persons = np.repeat([0, 1], [100, 200]), np.arange(300) // 4
    settings: dict[str, Any] = {
        **QUIET, "groups": groups, "persons": persons, "projection": None, "clip": 0.5, "learning_rate": 1e-9,
        "schedule": dpv.Schedule("replay", rounds=1),
    }  # fmt: skip
    privacy = dpv.Privacy(0.5, 1e-4, unit="person", mechanism="gaussian")
    rows = [dpv.release(train, test, privacy=privacy, seed=seed, **settings).rows for seed in range(40)]
    drawn = torch.stack(rows)
    centred = (drawn - drawn.mean(0)) * (40 / 39) ** 0.5
    std = 0.5 / accounting.mu_of_budget(0.5, 1e-4)
    for party, count in ((0, 25), (1, 50)):
        sample = centred[:, party].flatten().numpy()
        assert stats.kstest(sample, "norm", args=(0, std / count)).pvalue > 1e-3
        assert stats.kstest(sample, "norm", args=(0, 1.25 * std / count)).pvalue < 1e-3


@pytest.mark.slow
def test_four_sites_get_a_stable_ranking_at_epsilon_one() -> None:
    """Sites with 0, 20, 35 and 50% of their labels flipped, 100 records each: the same order over fresh noise."""
    X, y = load_breast_cancer(return_X_y=True)
    generator = np.random.default_rng(2)
    order = generator.permutation(len(X))
    X, y = X[order], y[order]
    sites = np.repeat(np.arange(4), 100)
    flip = generator.random(400) < np.array([0.0, 0.2, 0.35, 0.5])[sites]
    labels = np.where(flip, 1 - y[:400], y[:400])
    privacy = dpv.Privacy(1.0, 1e-5, unit="record")
    ranks = []
    for seed in range(10):
        result = dpv.value(
            (X[:400], labels), (X[400:], y[400:]), groups=sites, privacy=privacy, preprocess=StandardScaler(),
            noise="secure", progress=False, seed=seed,
        )  # fmt: skip
        ranks.append(np.argsort(-result.values["shapley"]).tolist())
    assert sum(rank == [0, 1, 2, 3] for rank in ranks) >= 8
    assert all(rank[0] == 0 for rank in ranks)
