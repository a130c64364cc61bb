"""Models as functions of one flat parameter vector, for many vectors at once.

Every `Model` provides the initial parameters, the outputs on a set of rows, the gradient of each party's weighted loss,
and the gradient of each record. `Linear` and `PaperCNN` have gradients in closed form; `Network` is any `nn.Module`,
through `torch.func`; `HeadOnTrunk` is the last layer of a network on a public trunk.
"""

from dpvalue.models.base import (
    CLASSIFICATION,
    COLUMN_MODELS,
    KINDS,
    REGRESSION,
    TASK_OF,
    TREES,
    Model,
    ModelFactory,
    UnitNumbers,
    row_losses,
)
from dpvalue.models.build import build_model, register_model, task_of
from dpvalue.models.cnn import PaperCNN, paper_cnn
from dpvalue.models.derived import DescriptionModel, Score, SubspaceModel, project_model
from dpvalue.models.forest import Forest, LeafOnes, Unsplit
from dpvalue.models.headed import Head, HeadOnTrunk, find_head, head_on_trunk
from dpvalue.models.linear import Linear
from dpvalue.models.network import Network

__all__ = [
    "CLASSIFICATION",
    "COLUMN_MODELS",
    "KINDS",
    "REGRESSION",
    "TASK_OF",
    "TREES",
    "DescriptionModel",
    "Forest",
    "Head",
    "HeadOnTrunk",
    "LeafOnes",
    "Linear",
    "Model",
    "ModelFactory",
    "Network",
    "PaperCNN",
    "Score",
    "SubspaceModel",
    "UnitNumbers",
    "Unsplit",
    "build_model",
    "find_head",
    "head_on_trunk",
    "paper_cnn",
    "project_model",
    "register_model",
    "row_losses",
    "task_of",
]  # fmt: skip
