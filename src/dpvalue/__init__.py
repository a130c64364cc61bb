"""dpvalue: what each party's data is worth to a model, from gradients released under differential privacy."""

from dpvalue import baselines, detection, diagnostics, games, privacy
from dpvalue.engine import Local
from dpvalue.errors import BudgetExceeded, DpvalueError
from dpvalue.files import load
from dpvalue.parties import Parties
from dpvalue.plan import plan
from dpvalue.plan_page import Plan
from dpvalue.privacy import Guarantee, Ledger, Privacy
from dpvalue.projection import Projection
from dpvalue.result import Result
from dpvalue.schedule import Schedule
from dpvalue.semivalues import Semivalue, semivalue
from dpvalue.table import Table
from dpvalue.utility import Utility
from dpvalue.valuation import release, value

__version__ = "0.1.0"
__all__ = [
    "BudgetExceeded", "DpvalueError", "Guarantee", "Ledger", "Local", "Parties", "Plan", "Privacy", "Projection",
    "Result", "Schedule", "Semivalue", "Table", "Utility", "baselines", "detection", "diagnostics", "games", "load",
    "plan", "privacy", "release", "semivalue", "value",
]  # fmt: skip
