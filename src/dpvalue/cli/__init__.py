"""The command line. Bad input ends with one clear line and exit code 2."""

from dpvalue.cli import run, check, plan, demo, audit, job, party, value, flower, ledger, key, experiments  # isort: skip  (the order of the help)
from dpvalue.cli.common import app

__all__ = [
    "app", "audit", "check", "demo", "experiments", "flower", "job", "key", "ledger", "party", "plan", "run",
    "value",
]  # fmt: skip
