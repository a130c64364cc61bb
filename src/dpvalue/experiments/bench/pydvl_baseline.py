"""Permutation Shapley by pyDVL on a saved problem: run by a Python that has pyDVL, apart from this package.

`python pydvl_baseline.py problem.npz PERMUTATIONS` prints the seconds that the fit took and the values, as JSON.
"""

import json
import sys
import time
import warnings

import numpy as np

warnings.simplefilter("ignore")
from pydvl.valuation import (  # noqa: E402
    Dataset,
    MinUpdates,
    ModelUtility,
    PermutationSampler,
    ShapleyValuation,
    SupervisedScorer,
)
from sklearn.linear_model import LogisticRegression  # noqa: E402

problem = np.load(sys.argv[1])
n = len(problem["x"])
both = np.concatenate([problem["x"], problem["x_test"]]), np.concatenate([problem["y"], problem["y_test"]])
names = [str(column) for column in range(both[0].shape[1])]
train = Dataset(both[0][:n], both[1][:n], names)
test = Dataset(both[0][n:], both[1][n:], names)
scorer = SupervisedScorer("neg_log_loss", test, default=-np.log(2.0), range=(-np.inf, 0.0))
utility = ModelUtility(LogisticRegression(), scorer, show_warnings=False)
valuation = ShapleyValuation(
    utility, PermutationSampler(seed=0), MinUpdates(int(sys.argv[2])), show_warnings=False, progress=False
)
begin = time.perf_counter()
valuation.fit(train)
seconds = time.perf_counter() - begin
result = valuation.result
order = np.argsort(result.indices)
print(json.dumps({"seconds": seconds, "values": np.asarray(result.values)[order].tolist()}))  # noqa: T201
