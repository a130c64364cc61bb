"""dpvalue: what each party's data is worth to a model, from gradients released under differential privacy.

Names are imported when they are first used, so that `import dpvalue`, and a command's help, load no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpvalue import baselines, detection, diagnostics, games, privacy, tasks
    from dpvalue.auditing.audit import audit
    from dpvalue.auditing.audit_page import Audit
    from dpvalue.auditing.membership import MembershipAttack, membership_attack
    from dpvalue.data.parties import Parties
    from dpvalue.data.problems import Problem
    from dpvalue.data.utility import Utility
    from dpvalue.engine import Engine, Local
    from dpvalue.errors import BudgetExceeded, DpvalueError
    from dpvalue.methods.loading import load
    from dpvalue.planning.settings import Settings
    from dpvalue.privacy import Guarantee, Ledger, Privacy
    from dpvalue.releasing.job import Job, Release, Request
    from dpvalue.releasing.party import Party
    from dpvalue.releasing.projection import Projection
    from dpvalue.releasing.schedule import Schedule
    from dpvalue.server.learning import Learned, federated
    from dpvalue.server.plan import plan
    from dpvalue.server.plan_page import Plan
    from dpvalue.server.value import release, value
    from dpvalue.study.combining import combine
    from dpvalue.valuation.comparison import Comparison
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
    "combine", "detection", "diagnostics", "federated", "games", "load", "membership_attack", "plan", "privacy",
    "release", "semivalue", "tasks", "value",
]  # fmt: skip

_HOMES = {
    "dpvalue.auditing.audit": ("audit",),
    "dpvalue.auditing.audit_page": ("Audit",),
    "dpvalue.auditing.membership": ("MembershipAttack", "membership_attack"),
    "dpvalue.data.parties": ("Parties",),
    "dpvalue.data.problems": ("Problem",),
    "dpvalue.data.utility": ("Utility",),
    "dpvalue.engine": ("Engine", "Local"),
    "dpvalue.errors": ("BudgetExceeded", "DpvalueError"),
    "dpvalue.planning.settings": ("Settings",),
    "dpvalue.privacy": ("Guarantee", "Ledger", "Privacy"),
    "dpvalue.releasing.job": ("Job", "Release", "Request"),
    "dpvalue.releasing.party": ("Party",),
    "dpvalue.releasing.projection": ("Projection",),
    "dpvalue.releasing.schedule": ("Schedule",),
    "dpvalue.server.learning": ("Learned", "federated"),
    "dpvalue.server.plan": ("plan",),
    "dpvalue.server.plan_page": ("Plan",),
    "dpvalue.server.value": ("release", "value"),
    "dpvalue.study.combining": ("combine",),
    "dpvalue.valuation.comparison": ("Comparison",),
    "dpvalue.methods.loading": ("load",),
    "dpvalue.valuation.payouts": ("Shares",),
    "dpvalue.valuation.result": ("Result",),
    "dpvalue.valuation.semivalues": ("Semivalue", "semivalue"),
    "dpvalue.valuation.table": ("Table",),
    "dpvalue.valuation.verdict": ("Verdict",),
}
_HOME = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> Any:
    """Import a name when it is first used; what has no home in `_HOMES` is a module."""
    if name not in __all__:
        raise AttributeError(f"module 'dpvalue' has no attribute {name!r}")
    found: Any = getattr(import_module(_HOME[name]), name) if name in _HOME else import_module(f"dpvalue.{name}")
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
