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
from dpvalue.planning.settings import Settings
from dpvalue.privacy import Guarantee, Ledger, Privacy
from dpvalue.releasing.job import Job, Release, Request
from dpvalue.releasing.party import Party
from dpvalue.releasing.projection import Projection
from dpvalue.releasing.schedule import Schedule
from dpvalue.server import baselines
from dpvalue.server.learning import Learned, federated
from dpvalue.server.plan import plan
from dpvalue.server.plan_page import Plan
from dpvalue.server.value import release, value
from dpvalue.valuation import diagnostics, games, tasks
from dpvalue.valuation.comparison import Comparison
from dpvalue.valuation.loading import load
from dpvalue.valuation.payouts import Shares
from dpvalue.valuation.result import Result
from dpvalue.valuation.semivalues import Semivalue, semivalue
from dpvalue.valuation.table import Table
from dpvalue.valuation.verdict import Verdict

__version__ = "0.1.0"
__all__ = [
    "Audit", "BudgetExceeded", "Comparison", "DpvalueError", "Engine", "Guarantee", "Job", "Learned", "Ledger", "Local",
    "MembershipAttack", "Parties", "Party", "Plan", "Privacy", "Problem", "Projection", "Release", "Request",
    "Result", "Schedule", "Semivalue", "Settings", "Shares", "Table", "Utility", "Verdict", "audit", "baselines",
    "detection", "diagnostics", "federated", "games", "load", "membership_attack", "plan", "privacy", "release",
    "semivalue", "tasks", "value",
]  # fmt: skip
