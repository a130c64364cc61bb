"""The paper's tables and figures, each from one command: `dpvalue reproduce NAME`."""

from dpvalue_experiments.paper import (
    attack,
    diabetes,
    federated_rates,
    labels,
    mnist_variants,
    resources,
    theory,
    use_cases,
)
from dpvalue_experiments.paper.trials import Experiment

EXPERIMENTS: dict[str, Experiment] = {
    one.name: one
    for one in (
        labels.SEMIVALUES_COVERTYPE, labels.SEMIVALUES_MNIST, labels.LOO_COVERTYPE, labels.LOO_MNIST,
        labels.BURN_IN_COVERTYPE, labels.BURN_IN_MNIST, mnist_variants.MNIST_VARIANTS, diabetes.LARGER_K,
        diabetes.SELECTION, diabetes.SIMILARITY, theory.UNCERTAINTY, labels.EPSILON, diabetes.REGRESSION, attack.MIA,
        attack.MIA_COVERTYPE,
        *federated_rates.FEDERATED_RATES, *use_cases.USE_CASES, resources.MEMORY, resources.RUNTIME,
    )
}  # fmt: skip

GROUPS = {"use-cases": tuple(one.name for one in use_cases.USE_CASES), "all": tuple(EXPERIMENTS)}

__all__ = ["EXPERIMENTS", "GROUPS", "Experiment"]
