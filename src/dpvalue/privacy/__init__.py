"""Budgets and guarantees, accounting, noise, and the mechanism through which private data leaves."""

from dpvalue.privacy import accounting
from dpvalue.privacy.budget import Guarantee, Privacy, total_epsilon

__all__ = ["Guarantee", "Privacy", "accounting", "total_epsilon"]
