"""Methods of valuing: what parties release, how releases are read, and which game is valued.

| method | modules |
|---|---|
| sums of steps (the paper) | `steps.py`; games: `sums.py`, `few.py` (one to three numbers per party) |
| negated loss under a public model | `scores.py` |
| retraining | `refit.py`; query: `surrogate.py`; reading: `reading.py`; game: `refitting.py` |
| counts in public trees | `trees.py`; trees: `growing.py`, `leaves.py`; the rest: `leaf_*.py` |
| choice of the method | `choosing.py` |
"""

from dpvalue.methods.base import register_method
from dpvalue.methods.refit import Refit
from dpvalue.methods.scores import Scores
from dpvalue.methods.steps import Steps
from dpvalue.methods.trees import Trees
from dpvalue.planning.settings import GAMES, Settings

for _method in (Steps, Scores, Refit, Trees):
    register_method(_method)

__all__ = ["GAMES", "Refit", "Scores", "Settings", "Steps", "Trees"]  # the settings that may name all of them
