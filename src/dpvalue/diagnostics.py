"""How uncertain values are, in the two measures of the paper."""

from dpvalue.valuation.diagnostics import estimation_uncertainty, mean_adjusted_variance

__all__ = ["estimation_uncertainty", "mean_adjusted_variance"]
