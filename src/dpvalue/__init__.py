"""dpvalue: what each party's data is worth to a model, from gradients released under differential privacy."""

from dpvalue import baselines, detection, diagnostics, games, privacy, tasks
from dpvalue.audit import audit
from dpvalue.audit_page import Audit
from dpvalue.engine import Local
from dpvalue.errors import BudgetExceeded, DpvalueError
from dpvalue.files import load
from dpvalue.membership import MembershipAttack, membership_attack
from dpvalue.parties import Parties
from dpvalue.plan import plan
from dpvalue.plan_page import Plan
from dpvalue.privacy import Guarantee, Ledger, Privacy
from dpvalue.problems import Problem
from dpvalue.projection import Projection
from dpvalue.result import Result
from dpvalue.schedule import Schedule
from dpvalue.semivalues import Semivalue, semivalue
from dpvalue.table import Table
from dpvalue.utility import Utility
from dpvalue.valuation import release, value

__version__ = "0.1.0"
__all__ = [
    "Audit", "BudgetExceeded", "DpvalueError", "Guarantee", "Ledger", "Local", "MembershipAttack", "Parties", "Plan",
    "Privacy", "Problem", "Projection", "Result", "Schedule", "Semivalue", "Table", "Utility", "audit", "baselines",
    "detection", "diagnostics", "games", "load", "membership_attack", "plan", "privacy", "release", "semivalue",
    "tasks", "value",
]  # fmt: skip
