"""What values are used for: curves of removing and adding parties, and how stable a ranking is.

Finding corrupted parties is in `dpvalue.detection`.
"""

from dpvalue.valuation.tasks.curves import Curve, addition_curve, removal_curve, retraining_curve
from dpvalue.valuation.tasks.stability import Stability, rank_stability

__all__ = ["Curve", "Stability", "addition_curve", "rank_stability", "removal_curve", "retraining_curve"]
