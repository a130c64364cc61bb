"""Whether our fits are scikit-learn's: worths of some coalitions, side by side."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dpvalue.arrays import Array, Bools, Floats
from dpvalue.experiments.consortium.fits import fit, worth
from dpvalue.experiments.consortium.problems import PartyProblem
from dpvalue.experiments.consortium.truth import private_stack, public_stack


@dataclass(frozen=True, eq=False)
class FitComparison:
    """The worths of some coalitions by our fits and by scikit-learn's, and how far predictions lie apart.

    Attributes:
        ours: worths by our fits.
        theirs: worths by scikit-learn's.
        predictions: the largest difference in a chance, or in a predicted number, over all coalitions and public rows.
    """

    ours: Floats
    theirs: Floats
    predictions: float

    @property
    def difference(self) -> float:
        """The largest difference in worth."""
        return float(np.abs(self.ours - self.theirs).max())


def compare(problem: PartyProblem, coalitions: Bools) -> FitComparison:
    """Fit coalitions, a row that is true for its members each, here and by scikit-learn."""
    records, public = private_stack(problem), public_stack(problem)
    theta = fit(records, torch.from_numpy(coalitions).long())
    logits = public.logits(theta)
    if problem.classes == 2:
        ours = torch.nn.functional.pad(logits, (0, 0, 1, 0)).softmax(1).numpy()
    else:
        ours = logits.softmax(1).numpy() if problem.classes else logits.numpy()
    theirs = np.stack([_scikit_learns(problem, members) for members in coalitions])
    y = problem.utility()[1]
    if problem.regression:
        worths = -((theirs[:, 0] - y) ** 2).mean(1)
    else:
        worths = np.log(theirs[:, y, np.arange(len(y))]).mean(1)
    return FitComparison(worth(public, theta), worths, float(np.abs(ours - theirs).max()))


def _scikit_learns(problem: PartyProblem, members: Bools) -> Array:
    """Chances of the public rows (classes, rows), or predicted numbers (1, rows)."""
    from sklearn.linear_model import LogisticRegression, Ridge

    judging, known = problem.utility()
    parts = [problem.ready(problem.parties[j].take(problem.parties[j].valid)) for j in np.flatnonzero(members)]
    x, y = (np.concatenate(of_all) for of_all in zip(*parts, strict=True))
    weights = np.ones(len(x))
    constant = np.ones((len(judging), 1))
    x, judging = np.c_[x, np.ones(len(x))], np.c_[judging, constant]
    if problem.regression:
        return np.asarray(Ridge(alpha=1.0, fit_intercept=False).fit(x, y).predict(judging)[None])
    # Public rows of weight zero name the classes that a coalition may lack.
    x, y, weights = np.r_[x, judging], np.r_[y, known], np.r_[weights, np.zeros(len(judging))]
    model = LogisticRegression(C=1.0, fit_intercept=False, solver="newton-cg", tol=1e-10, max_iter=10_000)
    return np.asarray(model.fit(x, y, sample_weight=weights).predict_proba(judging).T)
