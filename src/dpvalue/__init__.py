"""dpvalue: what each party's data is worth to a model, from gradients released under differential privacy.

Names are imported when they are first used, so that `import dpvalue`, and a command's help, load no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from dpvalue import baselines, detection, diagnostics, games, privacy, tasks
    from dpvalue.api import release, value
    from dpvalue.auditing.audit import audit
    from dpvalue.auditing.findings import Audit
    from dpvalue.auditing.membership import MembershipAttack, membership_attack
    from dpvalue.coordinator.releases import combine
    from dpvalue.data.checks import Problem
    from dpvalue.data.parties import Parties
    from dpvalue.data.utility import Utility
    from dpvalue.engine import Engine, Local
    from dpvalue.errors import BudgetExceeded, DpvalueError
    from dpvalue.games.semivalues import Semivalue, semivalue
    from dpvalue.methods import Settings
    from dpvalue.party.party import Party
    from dpvalue.privacy import Guarantee, Ledger, Privacy
    from dpvalue.protocol.job import Job
    from dpvalue.protocol.messages import Release, Request
    from dpvalue.protocol.projection import Projection
    from dpvalue.protocol.schedule import Schedule
    from dpvalue.runs.federated import FederatedResult, federated
    from dpvalue.runs.loading import load
    from dpvalue.runs.plan import plan
    from dpvalue.runs.plan_page import Plan
    from dpvalue.values.comparison import Comparison
    from dpvalue.values.payouts import Shares
    from dpvalue.values.result import Result
    from dpvalue.values.table import Table
    from dpvalue.values.verdict import Verdict

__version__ = "0.1.0"
__all__ = [
    "Audit",
    "BudgetExceeded",
    "Comparison",
    "DpvalueError",
    "Engine",
    "FederatedResult",
    "Guarantee",
    "Job",
    "Ledger",
    "Local",
    "MembershipAttack",
    "Parties",
    "Party",
    "Plan",
    "Privacy",
    "Problem",
    "Projection",
    "Release",
    "Request",
    "Result",
    "Schedule",
    "Semivalue",
    "Settings",
    "Shares",
    "Table",
    "Utility",
    "Verdict",
    "audit",
    "baselines",
    "combine",
    "detection",
    "diagnostics",
    "federated",
    "games",
    "load",
    "membership_attack",
    "plan",
    "privacy",
    "release",
    "semivalue",
    "tasks",
    "value",
]  # fmt: skip

_HOMES = {
    "dpvalue.auditing.audit": ("audit",),
    "dpvalue.auditing.findings": ("Audit",),
    "dpvalue.auditing.membership": ("MembershipAttack", "membership_attack"),
    "dpvalue.data.parties": ("Parties",),
    "dpvalue.data.checks": ("Problem",),
    "dpvalue.data.utility": ("Utility",),
    "dpvalue.engine": ("Engine", "Local"),
    "dpvalue.errors": ("BudgetExceeded", "DpvalueError"),
    "dpvalue.methods": ("Settings",),  # with the methods that settings may name
    "dpvalue.privacy": ("Guarantee", "Ledger", "Privacy"),
    "dpvalue.protocol.job": ("Job",),
    "dpvalue.protocol.messages": ("Release", "Request"),
    "dpvalue.party.party": ("Party",),
    "dpvalue.protocol.projection": ("Projection",),
    "dpvalue.protocol.schedule": ("Schedule",),
    "dpvalue.runs.federated": ("FederatedResult", "federated"),
    "dpvalue.runs.plan": ("plan",),
    "dpvalue.runs.plan_page": ("Plan",),
    "dpvalue.api": ("release", "value"),
    "dpvalue.coordinator.releases": ("combine",),
    "dpvalue.values.comparison": ("Comparison",),
    "dpvalue.runs.loading": ("load",),
    "dpvalue.values.payouts": ("Shares",),
    "dpvalue.values.result": ("Result",),
    "dpvalue.games.semivalues": ("Semivalue", "semivalue"),
    "dpvalue.values.table": ("Table",),
    "dpvalue.values.verdict": ("Verdict",),
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
