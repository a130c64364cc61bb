"""The ways of valuing: what is asked of parties, how their answers are read, and which game values are of.

| question | module |
|---|---|
| sums of steps, the paper's way | `steps.py`; games: `sums.py`, of one number a party `line.py`, of a few `few.py` |
| minus the loss under a public model | `scores.py` |
| what retraining would give | `refit.py`: what is asked `surrogate.py`, read `reading.py`, valued `refitting.py` |
| which of them a run uses | `choosing.py` |
"""

from dpvalue.methods.base import register_method
from dpvalue.methods.refit import Refit
from dpvalue.methods.scores import Scores
from dpvalue.methods.steps import Steps

for _method in (Steps, Scores, Refit):
    register_method(_method)

__all__ = ["Refit", "Scores", "Steps"]
