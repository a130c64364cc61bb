"""Models as functions of one flat parameter vector, for many vectors at once.

All kinds answer the same questions (`Model`): the initial parameters, the outputs on a set of rows, the gradient of
each party's weighted loss, and the gradient of each single record. `Linear` and `PaperCNN` have gradients in closed
form; `Network` is any `nn.Module`, through `torch.func`; `Headed` is the last layer of one, on a public trunk.
"""

from dpvalue.models.base import CLASSIFICATION, KINDS, REGRESSION, TASK_OF, Model, ModelFactory, UnitNumbers, row_losses
from dpvalue.models.build import build_model, task_of
from dpvalue.models.cnn import PaperCNN, paper_cnn
from dpvalue.models.derived import Described, Projected, Score, projected
from dpvalue.models.headed import Head, Headed, find_head, head_on_trunk
from dpvalue.models.linear import Linear
from dpvalue.models.network import Network

__all__ = [
    "CLASSIFICATION", "KINDS", "REGRESSION", "TASK_OF", "Described", "Head", "Headed", "Linear", "Model",
    "ModelFactory", "Network", "PaperCNN", "Projected", "Score", "UnitNumbers", "build_model", "find_head",
    "head_on_trunk", "paper_cnn", "projected", "row_losses", "task_of",
]  # fmt: skip
