"""dpvalue: what each party's data is worth to a model, from gradients released under differential privacy."""

from dpvalue import privacy
from dpvalue.auditing.audit import audit
from dpvalue.auditing.audit_page import Audit
from dpvalue.auditing.membership import MembershipAttack, membership_attack
from dpvalue.data.parties import Parties
from dpvalue.data.problems import Problem
from dpvalue.data.utility import Utility
from dpvalue.engine import Engine, Local
from dpvalue.errors import BudgetExceeded, DpvalueError
from dpvalue.planning import detection
from dpvalue.planning.plan import plan
from dpvalue.planning.plan_page import Plan
from dpvalue.planning.projection import Projection
from dpvalue.privacy import Guarantee, Ledger, Privacy
from dpvalue.releasing.schedule import Schedule
from dpvalue.valuation import baselines, diagnostics, games, tasks
from dpvalue.valuation.result import Result
from dpvalue.valuation.semivalues import Semivalue, semivalue
from dpvalue.valuation.storage import load
from dpvalue.valuation.table import Table
from dpvalue.valuation.value import release, value

__version__ = "0.1.0"
__all__ = [
    "Audit", "BudgetExceeded", "DpvalueError", "Engine", "Guarantee", "Ledger", "Local", "MembershipAttack", "Parties",
    "Plan", "Privacy", "Problem", "Projection", "Result", "Schedule", "Semivalue", "Table", "Utility", "audit",
    "baselines", "detection", "diagnostics", "games", "load", "membership_attack", "plan", "privacy", "release",
    "semivalue", "tasks", "value",
]  # fmt: skip
