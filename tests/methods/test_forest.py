"""Public trees: what a forest may be, how it grows, what its leaves say, and games of counts in them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

import dpvalue as dpv
from dpvalue.data.utility import METRICS, PublicSet
from dpvalue.games.semivalues import semivalue
from dpvalue.games.solving import value_game
from dpvalue.methods.growing import even_salt, fold_of, grow_forest
from dpvalue.methods.leaf_game import _BY_SLOPE, LeafGame
from dpvalue.methods.leaf_posterior import LEFT, LeafPosterior
from dpvalue.methods.leaf_rule import ForestShape
from dpvalue.methods.leaves import Grown, Judge
from dpvalue.models import Forest, LeafOnes
from tests.datasets import classification

ENGINE = dpv.Local(device="cpu")
_, (X, Y) = classification(1, classes=3, features=4, test=300)
FEATURES, LABELS = torch.tensor(X, dtype=torch.float32), torch.tensor(Y)


def arrays(**changed: Any) -> dict[str, Any]:
    """A tree of three leaves (0, then 1 and 2 under the root's right), and one of a single leaf."""
    made: dict[str, Any] = {
        "feature": np.array([[1, 0, 0, 0, 0], [0, 0, 0, 0, 0]]),
        "threshold": np.array([[0.5, 0, -1.5, 0, 0], [0] * 5], dtype=np.float32),
        "left": np.array([[1, 1, 3, 3, 4], [0, 1, 2, 3, 4]]),
        "right": np.array([[2, 1, 4, 3, 4], [0, 1, 2, 3, 4]]),
        "leaf": np.array([[-1, 0, -1, 1, 2], [0, -1, -1, -1, -1]]),
    }
    for name, (place, number) in changed.items():
        made[name] = made[name].copy()
        made[name][place] = number
    return made


def test_rows_go_left_at_the_threshold_and_end_in_a_leaf() -> None:
    forest = Forest(**arrays())
    rows = torch.tensor([[9.0, 0.5], [-1.5, 0.6], [-1.4, 0.6], [torch.nan, torch.inf]])
    assert forest.leaf_of(rows).tolist() == [[0, 0], [1, 0], [2, 0], [2, 0]]
    assert (forest.trees, forest.leaves, forest.depth.tolist()) == (2, 3, [[0, 1, 1, 2, 2], [0] * 5])
    assert forest.leaf_of(rows.double()).tolist() == forest.leaf_of(rows).tolist()
    assert forest.leaf_of(rows[:0]).shape == (0, 2)
    ones = LeafOnes(forest, 2).ones(forest.leaf_of(rows), torch.tensor([0, 1, 1, 0]), torch.zeros(1))
    cells = ones.view(4, 2, 3, 2)
    assert cells.sum((1, 2, 3)).tolist() == [2.0] * 4
    assert [float(cells[row, 0, leaf, y]) for row, (leaf, y) in enumerate([(0, 0), (1, 1), (2, 1), (2, 0)])] == [1] * 4


@pytest.mark.parametrize(
    ("changed", "message"),
    [
        ({"left": ((0, 2), 1)}, "stand after their parent"),  # back up: a way without end
        ({"left": ((0, 2), 2)}, "two children, or none"),
        ({"left": ((0, 0), 5)}, "stand after their parent"),
        ({"left": ((0, 0), -1)}, "stand after their parent"),
        ({"right": ((0, 0), 1)}, "one parent"),
        ({"leaf": ((0, 3), 0)}, "number the leaves"),
        ({"leaf": ((0, 3), 7)}, "number the leaves"),
        ({"leaf": ((1, 4), 1)}, "number the leaves"),
        ({"leaf": ((0, 0), 0)}, "number the leaves"),
        ({"threshold": ((0, 0), np.nan)}, "finite"),
        ({"threshold": ((0, 1), np.inf)}, "finite"),
        ({"feature": ((0, 0), -1)}, "numbers of features"),
    ],
)
def test_what_is_no_forest_is_refused(changed: dict[str, Any], message: str) -> None:
    with pytest.raises(dpv.DpvalueError, match=message):
        Forest(**arrays(**changed))


def test_forests_are_bounded_and_of_fixed_types() -> None:
    whole = arrays()
    for name in whole:
        with pytest.raises(dpv.DpvalueError, match=f"{name} of a forest must be"):
            Forest(**{**whole, name: whole[name].astype(np.int32)})
        with pytest.raises(dpv.DpvalueError, match=r"a forest must have|of a forest must be"):
            Forest(**{**whole, name: whole[name][:, :3]})
    for shape in ((65, 3), (1, 512), (0, 3), (2, 0)):
        many = {name: np.zeros(shape, dtype=part.dtype) for name, part in whole.items()}
        with pytest.raises(dpv.DpvalueError, match="a forest must have 1 to 64 trees"):
            Forest(**many)
    with pytest.raises(dpv.DpvalueError, match="below the number of features, 1"):
        Forest(**whole).require_features(1)
    tensors = Forest(**whole).tensors()
    assert Forest.of_tensors(tensors).digest() == Forest(**whole).digest()
    for name in tensors:
        for bad in (tensors[name].flatten(), tensors[name].to(torch.float64)):
            with pytest.raises(dpv.DpvalueError, match=f"the tensor '{name}' of a forest must be"):
                Forest.of_tensors({**tensors, name: bad})
        with pytest.raises(dpv.DpvalueError, match=f"the tensor '{name}' of a forest must be"):
            Forest.of_tensors({other: part for other, part in tensors.items() if other != name})


def test_digests_tell_forests_apart() -> None:
    whole = Forest(**arrays())
    others = [Forest(**arrays(threshold=((0, 0), 0.25))), Forest(**arrays(feature=((0, 2), 1)))]
    assert len({forest.digest() for forest in (whole, *others)}) == 3
    assert LeafOnes(whole, 2).digest() != LeafOnes(whole, 3).digest()


def grown(trees: int = 4, leaves: int = 8, smoothing: float = 4.0, sharpness: float = 1.0, folds: int = 2) -> Grown:
    shape = ForestShape(trees, leaves, smoothing, sharpness, folds)
    salt = even_salt(FEATURES, LABELS, folds)
    fold = fold_of(FEATURES, salt, folds)
    forest, judged_by = grow_forest(FEATURES, LABELS, 3, fold, shape, np.random.default_rng(0))
    return Grown(forest, 3, judged_by, salt, smoothing, sharpness)


@pytest.mark.parametrize("folds", [2, 4])
def test_folds_belong_to_rows_and_are_even(folds: int) -> None:
    salt = even_salt(FEATURES, LABELS, folds)
    fold = fold_of(FEATURES, salt, folds)
    order = torch.randperm(300)
    np.testing.assert_array_equal(fold_of(FEATURES[order], salt, folds), fold[order.numpy()])
    np.testing.assert_array_equal(fold_of(FEATURES.double(), salt, folds), fold)
    assert np.abs(np.bincount(fold, minlength=folds) - 300 / folds).max() < 25
    assert len(set(fold_of(torch.tensor([[0.0], [-0.0]]), salt, folds))) == 1
    assert not np.array_equal(fold_of(FEATURES, salt + 1, folds), fold)


@pytest.mark.parametrize("folds", [2, 4])
def test_trees_know_rows_that_did_not_grow_them(folds: int) -> None:
    made = grown(trees=4, folds=folds)
    assert made.forest.leaves == 8
    assert sorted(made.judged_by) == sorted(np.arange(4) % folds)
    fold, leaf = fold_of(FEATURES, made.salt, folds), made.forest.leaf_of(FEATURES).numpy()
    first = []
    for tree in range(4):
        seen = fold != made.judged_by[tree]
        counts = np.zeros((8, 3))
        np.add.at(counts, (leaf[seen, tree], Y[seen]), 1)
        first.append(float((counts[leaf[~seen, tree]].argmax(1) == Y[~seen]).mean()))
        assert counts.sum(1)[: made.forest.leaf[tree].max() + 1].min() >= 5
    assert np.mean(first) > 0.6  # a third by chance
    whole = {tuple(leaf[:, tree]) for tree in range(4)}
    assert len(whole) == 4  # trees differ


def test_a_forest_does_not_depend_on_rows_that_judge_it() -> None:
    """Other labels of one fold change no tree that this fold judges."""
    shape, salt = ForestShape(4, 8, 4.0, folds=4), 1
    fold = fold_of(FEATURES, salt, 4)
    other = torch.where(torch.from_numpy(fold == 2), (LABELS + 1) % 3, LABELS)
    (one, judged_by), (two, _) = (
        grow_forest(FEATURES, labels, 3, fold, shape, np.random.default_rng(0)) for labels in (LABELS, other)
    )
    for tree in range(4):
        alike = np.array_equal(one.feature[tree], two.feature[tree]) and np.array_equal(one.left[tree], two.left[tree])
        assert alike or judged_by[tree] != 2
    assert one.digest() != two.digest()


def test_the_first_split_is_the_best_of_those_drawn() -> None:
    x = torch.tensor([[float(i), float(i % 7)] for i in range(30)])
    y = (x[:, 0] > 19.5).long()
    found = set()
    for seed in range(12):  # half of the features are tried: sometimes the one that tells
        shape = ForestShape(2, 2, 4.0)
        forest, _ = grow_forest(x, y, 2, np.zeros(30, dtype=np.int64), shape, np.random.default_rng(seed))
        found |= {(int(f), float(t)) for f, t in zip(forest.feature[:, 0], forest.threshold[:, 0], strict=True)}
    assert all(4 <= edge < 25 for feature, edge in found if feature == 0 and edge)  # five rows on either side
    assert any(feature == 0 for feature, _ in found)
    tried = ForestShape(2, 2, 4.0)
    both = [
        grow_forest(x.repeat(1, 20), y, 2, np.zeros(30, dtype=np.int64), tried, np.random.default_rng(s))[0]
        for s in range(6)
    ]
    best = [float(forest.threshold[0, 0]) for forest in both if forest.feature[0, 0] % 2 == 0]
    assert np.abs(np.median(best) - 19.5) < 2.5  # of many thresholds that are drawn the best is kept


def test_trees_find_what_no_single_split_shows() -> None:
    """XOR: trees of a few leaves, filled with public rows, tell unseen ones."""
    generator = np.random.default_rng(1)
    x = torch.tensor(generator.uniform(-1, 1, (800, 2)), dtype=torch.float32)
    y = (x.prod(1) > 0).long()
    shape, salt = ForestShape(16, 16, 2.0), even_salt(x, y, 2)
    forest, judged_by = grow_forest(x, y, 2, fold_of(x, salt, 2), shape, generator)
    made = Grown(forest, 2, judged_by, salt, 2.0, 1.0)
    ones = LeafOnes(forest, 2)
    counts = ones.ones(ones.inputs(x), y, torch.zeros(1, dtype=torch.float64)).sum(0, keepdim=True)
    counts = torch.nn.functional.pad(counts, (0, 1))  # no variance of noise
    assert Judge(made, PublicSet(x, y, METRICS["auc"], 0.0), ENGINE)(counts)[0] > 0.9


def test_rows_that_are_all_alike_grow_a_single_leaf() -> None:
    x, y = torch.zeros(50, 3), torch.arange(50) % 2
    forest, judged_by = grow_forest(x, y, 2, fold_of(x, 0, 2), ForestShape(2, 8, 4.0), np.random.default_rng(0))
    assert forest.leaves == 1
    assert sorted(judged_by) == [0, 1]


def slow_shares(made: Grown, tree: int, counts: Any) -> dict[int, Any]:
    """The class shares in each leaf of a tree, from the formula, node by node."""
    forest, found = made.forest, {}

    def total(node: int) -> Any:
        if forest.left[tree, node] == node:
            return counts[forest.leaf[tree, node]]
        return total(forest.left[tree, node]) + total(forest.right[tree, node])

    def fill(node: int, parent: Any, a: float) -> None:
        own = total(node)
        share = (own + a * parent) / (own.sum() + a)
        if forest.left[tree, node] == node:
            found[int(forest.leaf[tree, node])] = share
            return
        fill(forest.left[tree, node], share, made.smoothing)
        fill(forest.right[tree, node], share, made.smoothing)

    fill(0, np.full(made.classes, 1 / made.classes), 1.0)
    return found


def slow_outputs(made: Grown, counts: Any) -> Any:
    """The probabilities of each public row, from the trees that it did not grow."""
    fold, leaf = fold_of(FEATURES, made.salt, made.folds), made.forest.leaf_of(FEATURES).numpy()
    shares = [slow_shares(made, tree, counts[tree]) for tree in range(made.forest.trees)]
    rows = []
    for row in range(len(Y)):
        trees = [tree for tree in range(made.forest.trees) if made.judged_by[tree] == fold[row]]
        logs = made.sharpness * np.mean([np.log(shares[tree][leaf[row, tree]]) for tree in trees], axis=0)
        rows.append(np.exp(logs) / np.exp(logs).sum())
    return np.array(rows)


@pytest.mark.parametrize(("leaves", "folds"), [(1, 2), (5, 2), (8, 4)])
def test_worths_are_those_of_the_formula(leaves: int, folds: int) -> None:
    """Row by row and node by node in plain Python, for the loss, AUC, accuracy and a function of one's own."""
    made, generator = grown(8, leaves, 2.5, 1.7, folds), np.random.default_rng(2)
    counts = generator.poisson(4.0, (5, *made.shape)).astype(float)
    counts[3] = 0.0  # nobody
    counts[4, :, 0] = 0.0
    flat = torch.nn.functional.pad(torch.from_numpy(counts.reshape(5, -1)), (0, 1))  # no variance of noise
    outputs = [slow_outputs(made, one) for one in counts]
    np.testing.assert_allclose(outputs[3], 1 / 3)
    own = dpv.Utility(X, Y, metric=lambda p, y: float(p[np.arange(len(y)), y].mean()))
    expected = {
        "loss": [np.log(p[np.arange(300), Y]).mean() for p in outputs],
        "auc": [roc_auc_score(Y, p, multi_class="ovr") for p in outputs],
        "accuracy": [(p.argmax(1) == Y).mean() for p in outputs],
    }
    for name, worths in expected.items():
        public = PublicSet(FEATURES, LABELS, METRICS[name], 0.0)
        np.testing.assert_allclose(Judge(made, public, ENGINE)(flat), worths, atol=1e-9)
    public = own.encode(own.encoding("trees"), torch.float32, torch.device("cpu"))
    shares = [p[np.arange(300), Y].mean() for p in outputs]
    np.testing.assert_allclose(Judge(made, public, ENGINE)(flat), shares, atol=1e-9)


def test_a_penalty_of_parameters_is_refused() -> None:
    with pytest.raises(dpv.DpvalueError, match="l2 must be 0 for model='trees'"):
        Judge(grown(), PublicSet(FEATURES, LABELS, METRICS["loss"], 0.1), ENGINE)


def game_of(parties: int, metric: str = "loss", seed: int = 0) -> LeafGame:
    """A game of exact counts: parties of 30 records each, the first with ten times as many, some with wrong labels."""
    made, generator = grown(trees=2), np.random.default_rng(seed)
    public = PublicSet(FEATURES, LABELS, METRICS[metric], 0.0)
    (x, y), _ = classification(40 * parties, classes=3, features=4, seed=0)
    ones = LeafOnes(made.forest, 3)
    cells = ones.ones(ones.inputs(torch.tensor(x, dtype=torch.float32)), torch.tensor(y), torch.zeros(1))
    sizes = np.full(parties, 30)
    sizes[0] = 300
    rows = []
    for party, size in enumerate(sizes):
        drawn = generator.integers(len(x), size=size)
        mean = cells[drawn].mean(0)
        rows.append(mean if party % 5 else cells[drawn].view(size, -1, 3).roll(1, 2).flatten(1).mean(0))
    return LeafGame(
        Judge(made, public, ENGINE), LeafPosterior(made, public), torch.stack(rows), np.zeros(parties), sizes
    )


@pytest.mark.parametrize("metric", ["loss", "auc"])
def test_walks_and_leave_one_out_are_those_of_worths(metric: str) -> None:
    game = game_of(9, metric)
    orders = np.stack([np.random.default_rng(seed).permutation(9) for seed in range(3)])
    np.testing.assert_allclose(game.walk(orders), dpv.games.Game.walk(game, orders), atol=1e-12)
    np.testing.assert_allclose(
        game.walk(orders[:1])[0], game._along(orders[0], float(game.worth(np.zeros((1, 9), bool))[0]))
    )
    np.testing.assert_allclose(game.leave_one_out(), dpv.games.Game.leave_one_out(game), atol=1e-12)
    assert game.direct_estimate(semivalue("shapley")) is None  # few parties are enumerated
    np.testing.assert_allclose(game.direct_estimate(semivalue("loo")).values, game.leave_one_out())  # type: ignore[union-attr]


@pytest.mark.parametrize("kind", ["shapley", "banzhaf", "beta(4,1)"])
def test_bands_say_what_walks_say(kind: str) -> None:
    """The semivalues of many parties, without walks, within their errors."""
    game = game_of(90)
    bands, walks = game.direct_estimate(semivalue(kind)), value_game(game, semivalue=kind, permutations=1500)
    assert bands is not None
    errors = np.hypot(bands.std_errors, walks.std_errors)
    assert (errors > 0).all()
    apart = (bands.values - walks.values) / errors
    assert np.square(apart).mean() < 2.5
    assert np.abs(apart).max() < 5
    assert np.corrcoef(bands.values, walks.values)[0, 1] > 0.98
    if kind == "shapley":
        everyone = game.worth(np.stack([np.ones(90, bool), np.zeros(90, bool)]))
        assert bands.values.sum() == pytest.approx(everyone[0] - everyone[1], abs=1e-9)
        assert bands.values[0] > 0.9 * walks.values[0] or walks.values[0] < 0
    again = game_of(90).direct_estimate(semivalue(kind))
    np.testing.assert_array_equal(bands.values, again.values)  # type: ignore[union-attr]


def test_a_member_of_a_band_is_added_to_the_others() -> None:
    """What each party adds to three others, from worths of coalitions; a member makes place for the next in order."""
    game = game_of(9)
    order = np.array([4, 2, 7, 5, 0, 1, 3, 6, 8])
    added = game._added(order, 3)
    for party in range(9):
        others = [one for one in order[:3] if one != party] + ([5] if party in order[:3] else [])
        without = np.isin(np.arange(9), others)
        worths = game.worth(np.stack([without, without | (np.arange(9) == party)]))
        assert added[party] == pytest.approx(worths[1] - worths[0], abs=1e-12)


def test_slopes_serve_games_of_very_many() -> None:
    """Six hundred parties alike but for labels: by slopes as by differences."""
    game = game_of(600)
    game._units[0] = 30
    assert _BY_SLOPE * 30 < 30 * 100  # Banzhaf's coalitions have about 300 members
    small = LeafGame(game.judge, game.posterior, game.rows, np.zeros(600), game._units)
    bands, walks = small.direct_estimate(semivalue("banzhaf")), value_game(small, semivalue="banzhaf", permutations=300)
    assert bands is not None
    apart = (bands.values - walks.values) / np.hypot(bands.std_errors, walks.std_errors)
    assert np.square(apart).mean() < 1.5
    assert np.corrcoef(bands.values, walks.values)[0, 1] > 0.97
    assert bands.values.std() == pytest.approx(walks.values.std(), rel=0.05)


def posterior_and_parties(count: int = 60, size: int = 100) -> tuple[LeafPosterior, Any]:
    """A posterior, and the true shares of parties of public rows that differ in a feature, half of them blank."""
    made = grown(trees=8)
    posterior, ones = LeafPosterior(made, PublicSet(FEATURES, LABELS, METRICS["loss"], 0.0)), LeafOnes(made.forest, 3)
    cells = ones.ones(ones.inputs(FEATURES), LABELS, torch.zeros(1, dtype=torch.float64)).numpy()
    generator, truth = np.random.default_rng(5), np.zeros((count, ones.size))
    for party in range(count // 2):
        order = np.argsort(X[:, party % 4] + generator.standard_normal(300))
        truth[party] = cells[order[party % 3 * 100 :][:size]].mean(0)
    return posterior, truth


def test_leaves_are_smoothed_by_their_noise() -> None:
    """By the formula of the module; without noise by the smoothing alone, with very much the root speaks for all."""
    made = grown(trees=2)
    counts = torch.from_numpy(np.random.default_rng(1).poisson(4.0, (*made.shape, 1)).astype(float))
    counts[1, int(made.forest.leaf[1].max()) + 1 :] = 0.0  # this tree has fewer leaves
    plain, loud = (made.shares(counts, torch.tensor([variance], dtype=torch.float64)) for variance in (0.0, 1e12))
    whole = counts.sum(1, keepdim=True)
    root = (whole + 1 / 3) / (whole.sum(2, keepdim=True) + 1)
    torch.testing.assert_close(loud, root.expand_as(loud), atol=1e-6, rtol=0)
    assert float((plain - root).abs().max()) > 0.1
    some = made.shares(counts, torch.tensor([7.0], dtype=torch.float64))
    forest, tree = made.forest, 0

    def below(node: int) -> list[int]:
        if forest.leaf[tree, node] >= 0:
            return [int(forest.leaf[tree, node])]
        return below(int(forest.left[tree, node])) + below(int(forest.right[tree, node]))

    def down(node: int, above: Any) -> None:
        leaves = below(node)
        own = counts[tree, leaves, :, 0].sum(0).numpy()
        smoothing = made.smoothing * (1 + len(leaves) * 7.0 / max(own.sum(), 1.0))
        share = (own + smoothing * above) / (own.sum() + smoothing) if node else root[tree, 0, :, 0].numpy()
        if len(leaves) == 1:
            np.testing.assert_allclose(some[tree, leaves[0], :, 0], share, atol=1e-12)
            return
        down(int(forest.left[tree, node]), share)
        down(int(forest.right[tree, node]), share)

    down(0, None)


def test_noise_is_known_to_the_model_and_costs_less_for_it() -> None:
    """Noisy counts make a better model when their noise is known than when they are taken for exact."""
    posterior, truth = posterior_and_parties()
    judge, generator = Judge(posterior.grown, posterior.public, ENGINE), np.random.default_rng(2)
    counts = torch.from_numpy(100 * truth[:30] + 20 * generator.standard_normal((30, truth.shape[1])))
    exact, blind, known = (
        judge(torch.cat([cells, torch.full((30, 1), variance, dtype=torch.float64)], dim=1)).mean()
        for cells, variance in ((torch.from_numpy(100 * truth[:30]), 0.0), (counts, 0.0), (counts, 400.0))
    )
    assert blind < known - 0.05 < known < exact


def test_a_game_adds_up_counts_and_the_variance_of_their_noise() -> None:
    game = game_of(3)
    noise = np.array([0.0, 0.05, 0.01])
    noisy = game.of(game.rows, noise)
    np.testing.assert_allclose(noisy.counts[:, -1], LEFT * np.square(noise * 30), rtol=1e-5)
    likely = game.posterior.likely(game.rows.double().numpy(), noise, np.full(3, 30))
    np.testing.assert_allclose(noisy.counts[:, :-1], likely * [[300.0], [30.0], [30.0]], rtol=1e-5)
    np.testing.assert_array_equal(likely[0], game.rows[0])  # this party's release had no noise
    sums = torch.stack([noisy.counts[[0, 1]].sum(0), noisy.counts[[1, 2]].sum(0)])
    np.testing.assert_allclose(noisy.worth(np.array([[True, True, False], [False, True, True]])), game.judge(sums))
    possible = noisy.without_noise(np.random.default_rng(0))
    assert not possible.counts[:, -1].any()
    np.testing.assert_array_equal(possible.counts[0], noisy.counts[0])


def test_the_prior_knows_how_groups_of_public_rows_differ() -> None:
    posterior, truth = posterior_and_parties()
    prior = posterior.prior
    np.testing.assert_allclose(prior.directions @ prior.directions.T, np.eye(len(prior.directions)), atol=1e-9)
    assert (prior.spread > 0).all()
    assert prior.public.sum() == pytest.approx(8.0)
    # Trees count the same rows: no group differs in one tree's total, so none is expected to.
    totals = prior.directions.reshape(len(prior.directions), 8, -1).sum(2)
    np.testing.assert_allclose(totals, 0.0, atol=1e-9)
    away = truth[:30] - prior.public
    inside = np.square(away @ prior.directions.T).sum(1) / np.square(away).sum(1)
    assert inside.mean() > 0.8  # parties that differ as groups do lie along the directions
    again = LeafPosterior(posterior.grown, posterior.public).prior
    np.testing.assert_array_equal(again.spread, prior.spread)


def test_noise_is_taken_off_and_blank_parties_are_not_there() -> None:
    """Mean and draws are nearer the truth than what was released; a party without a good row has next to nothing."""
    posterior, truth = posterior_and_parties()
    generator, units = np.random.default_rng(3), np.full(60, 100)
    for std in (0.005, 0.02, 0.05):
        rows, stds = truth + std * generator.standard_normal(truth.shape), np.full(60, std)
        drawn = np.mean([posterior.draw(rows, stds, units, generator) for _ in range(40)], axis=0)
        error = std * np.sqrt(truth.shape[1]) / 8
        for found in (posterior.likely(rows, stds, units), drawn):
            off, raw = (np.square(some - truth)[:30].sum(1).mean() for some in (found, rows))
            assert off < 0.6 * raw
            assert found[:30].sum(1).mean() / 8 == pytest.approx(1.0, abs=4 * error / 30**0.5 + 0.1)
            assert found[30:].sum(1).mean() / 8 < 0.05 + error
    np.testing.assert_array_equal(posterior.likely(truth, np.zeros(60), units), truth)


def test_a_release_tells_whether_a_party_has_records_that_count() -> None:
    """By Bayes' rule for the noisy number of records, at odds of 19 to 1; without noise nothing is to be told."""
    posterior, truth = posterior_and_parties()
    units, std = np.full(60, 100), 0.05
    rows = truth + std * np.random.default_rng(6).standard_normal(truth.shape)
    error = 100 * std * np.sqrt(truth.shape[1]) / 8
    sizes = 100 * rows.sum(1) / 8
    full, blank = (np.exp(-np.square(sizes - mean) / (2 * error**2)) for mean in (100, 0))
    expected = 19 * full / (19 * full + blank)
    found = posterior.presence(rows, np.full(60, std), units)
    np.testing.assert_allclose(found, expected, rtol=1e-9, atol=1e-12)
    assert found[:30].min() > 0.9
    assert found[30:].max() < 0.5
    np.testing.assert_array_equal(posterior.presence(rows, np.zeros(60), units), 1.0)


def test_draws_spread_as_far_as_noise_hides() -> None:
    posterior, truth = posterior_and_parties()
    generator, units = np.random.default_rng(4), np.full(60, 100)
    spreads = []
    for std in (0.0, 0.005, 0.02):
        rows, stds = truth + std * generator.standard_normal(truth.shape), np.full(60, std)
        draws = np.stack([100 * posterior.draw(rows, stds, units, generator) for _ in range(60)])
        assert (draws >= 0).all()
        spreads.append(float(draws[:, :30].std(0).mean()))
    assert spreads[0] == 0 < spreads[1] < spreads[2]
    assert spreads[1] < 0.5  # of 100 records: less than the noise itself
