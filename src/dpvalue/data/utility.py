"""What a model is worth: a number computed on the public set."""

from __future__ import annotations

from dataclasses import dataclass, field
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.data.columns import is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.encoding import Encoding, fit_encoding
from dpvalue.data.metrics import Function, Metric, as_metric
from dpvalue.data.raw import are_floats, features_and_labels, label_column, refuse_rows, row_count
from dpvalue.errors import DpvalueError, require_number
from dpvalue.models import CLASSIFICATION, ModelFactory, task_of


@dataclass(frozen=True, eq=False)
class Utility:
    """The utility V of a model, on a public set that no privacy rule protects.

    A private row that is also in this set is not protected; parties whose rows are this very object, or show the same
    memory, are refused.

    Args:
        X: public features.
        y: public labels; they also fix the classes.
        metric: what a model is worth on these rows, larger being better. Of both tasks "loss", the mean loss, negated;
            of classification "accuracy", "balanced_accuracy" (the mean of the classes' recalls) and "auc" (of more than
            two classes the mean of each against the rest); of regression "mse" and "mae", negated, and "r2". Or a
            callable of (outputs, labels) that returns one finite number. It gets one model at a time, as arrays: of
            classification the probabilities (rows, classes), with the classes in order, else the predictions (rows,);
            and the labels (rows,) as they are in `y`. `lambda p, y: roc_auc_score(y, p[:, 1])` is one.
        l2: subtracts l2 * |theta|^2 from "loss" (the paper's regularised cross-entropy).

    Example:
        >>> Utility(np.zeros((4, 2)), np.array([0, 1, 0, 1]), metric="accuracy")
        Utility(4 rows, metric='accuracy')
    """

    X: Any
    y: Any
    metric: str | Function = "loss"
    l2: float = 0.0
    source: Any = field(default=None, init=False, repr=False)
    """What X and y were taken out of, if anything."""

    def __post_init__(self) -> None:
        as_metric(self.metric)  # raises for one that there is not
        require_number("l2", self.l2, "at least 0", isinstance(self.l2, Real) and self.l2 >= 0)
        if self.l2 and self.metric != "loss":
            raise DpvalueError(f"l2 needs metric='loss', got l2={self.l2} and metric={self.metric!r}")
        labels = label_column(self.y, "utility labels")
        rows = row_count(self.X, "utility features")
        if len(labels) != rows:
            raise DpvalueError(f"utility labels must be one per row of features ({rows}), got {len(labels)}")
        if len(labels) < 2:
            raise DpvalueError(f"utility must have at least 2 rows, got {len(labels)}")

    def __repr__(self) -> str:
        return f"Utility({row_count(self.X, 'utility features')} rows, metric={self.metric!r})"

    def __getstate__(self) -> dict[str, Any]:
        """Return what a copy holds: X and y are enough."""
        return {**vars(self), "source": None}

    def encoding(self, model: str | ModelFactory, preprocess: Any = None, classes: Any = None) -> Encoding:
        """Return how rows become numbers, as this public set fixes it for a model."""
        task = task_of(model, as_metric(self.metric).task, float_labels=are_floats(self.y))
        return fit_encoding(self.X, self.y, task, preprocess, model == "cnn", classes)

    def encode(self, encoding: Encoding, dtype: torch.dtype, device: torch.device) -> PublicSet:
        """Return the public set as tensors."""
        x = encoding.features(self.X, "utility features")
        finite = np.asarray(np.isfinite(x.reshape(len(x), -1)).all(axis=1))
        refuse_rows(~finite, "utility features", "features must be finite")
        y = encoding.labels(self.y, "utility labels")
        if encoding.task == CLASSIFICATION:
            refuse_rows(y < 0, "utility labels", "labels must be among the classes")
        else:
            refuse_rows(~np.isfinite(y), "utility labels", "labels must be finite")
        given = y if encoding.task != CLASSIFICATION else np.asarray(label_column(self.y, "utility labels").cells)
        labels = torch.int64 if encoding.task == CLASSIFICATION else dtype
        return PublicSet(
            torch.tensor(x, dtype=dtype, device=device),
            torch.tensor(y, dtype=labels, device=device),
            as_metric(self.metric).of(encoding.task, y, given),
            float(self.l2),
        )


@dataclass(frozen=True)
class PublicSet:
    """A utility as tensors; `dpvalue.engine.evaluator` evaluates it on many models at once."""

    x: Tensor
    y: Tensor
    metric: Metric
    l2: float


def as_utility(data: Any, target: str | None = None, *labels: Any) -> Utility:
    """Return a utility from a `Utility`, or of metric "loss" from (X, y), a DataFrame with `target`, or a Dataset.

    A column that names groups of parties or persons (`labels`) is no feature: it is left out of a DataFrame.
    """
    if isinstance(data, Utility):
        return data
    rows = data
    if is_frame(data):
        table = as_columns(data)
        rows = table.without(*(name for name in labels if isinstance(name, str)))
    utility = Utility(*features_and_labels(rows, target, "utility"))
    object.__setattr__(utility, "source", data)
    return utility
