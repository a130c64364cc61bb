"""The paper's tables and figures, each from one command: `dpvalue reproduce NAME`."""

from dpvalue.experiments.paper import (
    attack,
    diabetes,
    label_figures,
    labels,
    resources,
    sweeps,
    theory,
    use_cases,
)
from dpvalue.experiments.paper.trials import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        labels.SEMIVALUES_COVERTYPE, labels.SEMIVALUES_MNIST, labels.LOO_COVERTYPE, labels.LOO_MNIST,
        label_figures.BURN_IN_COVERTYPE, label_figures.BURN_IN_MNIST,
        diabetes.LARGER_K, diabetes.SELECTION, diabetes.SIMILARITY, theory.UNCERTAINTY, label_figures.EPSILON,
        label_figures.EPSILON_MNIST, diabetes.REGRESSION, attack.MIA, attack.MIA_COVERTYPE, *use_cases.USE_CASES,
        *sweeps.RATES, resources.MEMORY, resources.RUNTIME,
    )
}  # fmt: skip

GROUPS = {"use-cases": tuple(one.name for one in use_cases.USE_CASES), "all": tuple(EXPERIMENTS)}

__all__ = ["EXPERIMENTS", "GROUPS", "Experiment"]
