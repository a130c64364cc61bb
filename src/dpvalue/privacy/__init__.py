"""Budgets and guarantees, accounting, noise, and the mechanism through which private data leaves."""

from dpvalue.privacy import accounting
from dpvalue.privacy.budget import Guarantee, Privacy

__all__ = ["Guarantee", "Privacy", "accounting"]
