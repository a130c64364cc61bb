"""What a user with a public set can do without a semivalue: a screening score for each party."""

from dpvalue.server.baselines import Screening, public_loss

__all__ = ["Screening", "public_loss"]
