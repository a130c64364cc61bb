"""Budgets, guarantees, accounting, clipping, noise, and ledgers."""

from dpvalue.privacy import accounting, clipping, laws
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.guarantees import Guarantee, total_epsilon
from dpvalue.privacy.ledger import Ledger

__all__ = ["Guarantee", "Ledger", "Privacy", "accounting", "clipping", "laws", "total_epsilon"]
