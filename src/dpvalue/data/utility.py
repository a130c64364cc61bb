"""Metrics, which are functions of a model's outputs and public labels, and the public set that defines the utility.

Larger is better for every metric, so losses and errors are negated. `METRICS` is the only table of names, for
`Utility`, `dpvalue run --metric`, settings in files and messages; `register_metric` adds a metric.

Outputs come for many models at once, in float64: of classification the probabilities of the classes (models, rows,
classes), in the order of the classes; of regression the predictions (models, rows), in the units of the label.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from numbers import Real
from typing import Any

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Array, Ints
from dpvalue.data.columns import is_frame
from dpvalue.data.conversions import as_columns
from dpvalue.data.encoding import Encoding, fit_encoding
from dpvalue.data.raw import are_floats, features_and_labels, label_column, refuse_rows, row_count
from dpvalue.data.rows import PublicRows
from dpvalue.errors import DpvalueError, require_number
from dpvalue.models import CLASSIFICATION, COLUMN_MODELS, REGRESSION, ModelFactory, task_of

Worth = Callable[[Tensor, Tensor], Tensor]
Function = Callable[[Array, Array], float]
BOTH = (CLASSIFICATION, REGRESSION)


@dataclass(frozen=True)
class Metric:
    """A measure of models; larger is better. Exactly one of `worth` and `of_loss` is set.

    Attributes:
        name: the name in arguments.
        title: the name in reports.
        tasks: the tasks it applies to.
        worth: from outputs (above) and labels (rows,), which are numbers of classes (int64) or numbers, to the worths
            (models,) in float64. That of a model must not depend on which other models there are.
        of_loss: for a metric that is offset - slope * the model's mean loss: from the labels to (offset, slope). The
            engine has fast ways for these.
        largest_only: whether it depends only on the class with the largest output; `worth` then gets the outputs
            before the softmax.
        labels_differ: whether it is undefined if all public labels are equal.
    """

    name: str
    title: str
    tasks: tuple[str, ...]
    worth: Worth | None = None
    of_loss: Callable[[Tensor], tuple[float, float]] | None = None
    largest_only: bool = False
    labels_differ: bool = False

    @property
    def task(self) -> str | None:
        """The task, if the metric applies to one task only; else None."""
        return self.tasks[0] if len(self.tasks) == 1 else None

    @property
    def by_name(self) -> bool:
        """Whether it is in `METRICS`, and not a caller's function."""
        return METRICS.get(self.name) == self

    def bind(self, task: str, labels: Array, raw_labels: Array) -> Metric:
        """Return the metric for public labels (rows,), encoded and raw; raise if it does not fit them."""
        if task not in self.tasks:
            others = ", ".join(name for name, metric in METRICS.items() if task in metric.tasks)
            raise DpvalueError(f"metric {self.name!r} does not fit a {task} model; use one of {others}")
        if self.labels_differ and (labels == labels[0]).all():
            raise DpvalueError(
                f"metric {self.name!r} needs public labels that differ, got {raw_labels[0]} in every row"
            )
        return (
            replace(self, worth=replace(self.worth, labels=raw_labels))
            if isinstance(self.worth, CustomMetric)
            else self
        )


@dataclass(frozen=True, eq=False)
class CustomMetric:
    """The worth by a caller's function, which takes the outputs of one model and the raw labels."""

    function: Function
    labels: Array | None = None

    def __call__(self, outputs: Tensor, labels: Tensor) -> Tensor:
        """Return the worth of each model, NaN for overflowed outputs; raise unless it is a finite number."""
        assert self.labels is not None
        worths = [
            _check_output(self.function(model, self.labels)) if np.isfinite(model).all() else np.nan
            for model in outputs.cpu().numpy()
        ]
        return torch.tensor(worths, dtype=torch.float64, device=outputs.device)


def _check_output(output: Any) -> float:
    """The output of a caller's function as a float; raises unless it is one finite number."""
    number = output.item() if isinstance(output, np.ndarray | Tensor) and output.shape == () else output
    if isinstance(number, Real) and np.isfinite(float(number)):
        return float(number)
    what = str(number) if isinstance(number, Real) else f"{type(output).__name__} of shape {np.shape(output)}"
    raise DpvalueError(f"metric must return one finite number, got {what}")


def accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the share of rows whose largest output is their class's; of equal outputs the first counts."""
    return (outputs.argmax(-1) == labels).mean(-1, dtype=torch.float64)


def balanced_accuracy(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean of the recalls of the classes in the labels."""
    right, classes = outputs.argmax(-1) == labels, labels.unique().tolist()
    return torch.stack([right[:, labels == label].mean(-1, dtype=torch.float64) for label in classes]).mean(0)


def auc(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the area under the ROC curve; of more than two classes, the mean of one class against the rest.

    The area is the share of pairs of a row of the class and another row in which the former has the larger probability
    of the class; ties count half. NaN for a model with an output that is not finite.
    """
    classes = labels.unique().tolist()
    if outputs.shape[-1] == 2:  # both classes have the same area
        classes = classes[1:]
    areas = torch.stack([_area(outputs[:, :, label], labels == label) for label in classes]).mean(0)
    return areas.where(outputs.isfinite().all(-1).all(-1), torch.nan)


def _area(scores: Tensor, positive: Tensor) -> Tensor:
    """The share of pairs in order (models,), from integers: its bits do not depend on the batch."""
    above, below = _sort_rows(scores[:, positive]), _sort_rows(scores[:, ~positive])
    twice = torch.searchsorted(below, above) + torch.searchsorted(below, above, right=True)
    return twice.sum(1).to(torch.float64) / (2 * above.shape[1] * below.shape[1])


def _sort_rows(scores: Tensor) -> Tensor:
    """Each row in order; numpy sorts on a CPU in a third of torch's time."""
    return scores.sort(dim=1).values if scores.is_cuda else torch.from_numpy(np.sort(scores.numpy(), axis=1))


def mae(outputs: Tensor, labels: Tensor) -> Tensor:
    """Return the mean absolute error, negated."""
    return -(outputs - labels).abs().mean(-1, dtype=torch.float64)


def _loss(labels: Tensor) -> tuple[float, float]:
    return 0.0, 1.0


def _r2(labels: Tensor) -> tuple[float, float]:
    return 1.0, 1.0 / float(labels.to(torch.float64).var(correction=0))


LOSS = Metric("loss", "mean loss, negated", BOTH, of_loss=_loss)
ACCURACY = Metric("accuracy", "accuracy", (CLASSIFICATION,), accuracy, largest_only=True)
METRICS = {
    metric.name: metric
    for metric in (
        LOSS,
        ACCURACY,
        Metric("balanced_accuracy", "balanced accuracy", (CLASSIFICATION,), balanced_accuracy, largest_only=True),
        Metric("auc", "AUC", (CLASSIFICATION,), auc, labels_differ=True),
        Metric("mse", "mean squared error, negated", (REGRESSION,), of_loss=_loss),
        Metric("mae", "mean absolute error, negated", (REGRESSION,), mae),
        Metric("r2", "R2", (REGRESSION,), of_loss=_r2, labels_differ=True),
    )
}
"""All metrics by name."""


def register_metric(metric: Metric) -> None:
    """Add a metric to `METRICS`; raise unless its name is new and a word in lower case."""
    if metric.name in METRICS or not (metric.name.isidentifier() and metric.name.islower()):
        raise DpvalueError(f"the name of a metric must be a new lower-case word, got {metric.name!r}")
    if (metric.worth is None) == (metric.of_loss is None):
        raise DpvalueError(f"the metric {metric.name!r} must have either worth or of_loss")
    METRICS[metric.name] = metric


def as_metric(metric: str | Function) -> Metric:
    """Return the metric of a name or of a function of (outputs, labels)."""
    if isinstance(metric, str) and metric in METRICS:
        return METRICS[metric]
    if not callable(metric):
        raise DpvalueError(
            f"metric must be one of {', '.join(METRICS)}, or a callable of (outputs, labels); got {metric!r}"
        )
    try:
        inspect.signature(metric).bind(None, None)
    except TypeError:
        raise DpvalueError(f"metric must be a callable of (outputs, labels), got {metric!r}") from None
    except ValueError:  # a C function without a signature
        pass
    return Metric("callable", "a callable of outputs and labels", BOTH, CustomMetric(metric))


@dataclass(frozen=True, eq=False)
class Utility:
    """The utility V of a model, on a public set that no privacy rule protects.

    A private row that is also in this set is not protected. Parties that share this object, or memory with it, are
    refused.

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
    """The object that X and y come from, if any."""

    def __post_init__(self) -> None:
        as_metric(self.metric)  # raises for an unknown metric
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
        """Return the state of a copy, without `source`."""
        return {**vars(self), "source": None}

    def encoding(self, model: str | ModelFactory, preprocess: Any = None, classes: Any = None) -> Encoding:
        """Return the encoding of rows that this public set fixes for a model."""
        task = task_of(model, as_metric(self.metric).task, float_labels=are_floats(self.y))
        images = isinstance(model, str) and model not in COLUMN_MODELS
        return fit_encoding(self.X, self.y, task, preprocess, images, classes)

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
        raw_labels = y if encoding.task != CLASSIFICATION else np.asarray(label_column(self.y, "utility labels").cells)
        labels = torch.int64 if encoding.task == CLASSIFICATION else dtype
        return PublicSet(
            torch.tensor(x, dtype=dtype, device=device),
            torch.tensor(y, dtype=labels, device=device),
            as_metric(self.metric).bind(encoding.task, y, raw_labels),
            float(self.l2),
        )


@dataclass(frozen=True)
class PublicSet:
    """A utility as tensors; `dpvalue.engine.evaluator` evaluates it on many models at once."""

    x: Tensor
    y: Tensor
    metric: Metric
    l2: float

    def stand_ins(self, numbers: Ints, sizes: Ints, like: Tensor) -> PublicRows:
        """Return public rows as the rows of stand-ins for parties.

        Args:
            numbers: the numbers of the rows, one stand-in after the other.
            sizes: the number of rows of each stand-in.
            like: a tensor of the type and on the device of the result.
        """
        rows = torch.from_numpy(numbers).to(self.x.device)
        return PublicRows.by_party(
            self.x[rows].cpu().numpy(), self.y[rows].cpu().numpy(), sizes, like.dtype, like.device
        )


def as_utility(data: Any, target: str | None = None, *labels: Any) -> Utility:
    """Return a utility from a `Utility`, or of metric "loss" from (X, y), a DataFrame with `target`, or a Dataset.

    A column of a DataFrame that names groups or persons (`labels`) is left out of the features.
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
