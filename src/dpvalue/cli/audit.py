"""`dpvalue audit`: canaries, or membership inference."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Annotated

import typer

from dpvalue.cli.common import app, failing_clearly, option, out
from dpvalue.errors import require_choice

if TYPE_CHECKING:
    from dpvalue.planning.settings import SettingsKeywords
    from dpvalue.privacy.budget import Privacy


@app.command()
def audit(
    attack: Annotated[str, option("canaries (default) or membership.")] = "canaries",
    data: Annotated[str, option("breast-cancer (default) or diabetes.")] = "breast-cancer",
    epsilon: Annotated[float, option("Claimed epsilon to attack; 1.")] = 1.0,
    delta: Annotated[float, option("Claimed delta; 5e-5.")] = 5e-5,
    unit: Annotated[str, option("party, record (default) or person; for canaries.")] = "record",
    neighbours: Annotated[str, option("zero_out (default) or replace.")] = "zero_out",
    accounting: Annotated[str, option("composition (default), or the paper's poisson.")] = "composition",
    mechanism: Annotated[str, option("auto (default), gaussian or laplace.")] = "auto",
    schedule: Annotated[str, option("replay (default), lagged, or a schedule of the paper.")] = "replay",
    model: Annotated[str, option("logistic (default) or trees, which are asked once.")] = "logistic",
    parties: Annotated[int, option("Number of parties, for canaries; 8.")] = 8,
    records: Annotated[int, option("Records per party, for canaries; 50.")] = 50,
    permutations: Annotated[int, option("Permutations per run; 100.")] = 100,
    runs: Annotated[int, option("Runs with and without canaries; 1000. For membership: trials; 40.")] = 0,
    seed: Annotated[int, option("Seed for public randomness; 0.")] = 0,
) -> None:
    """Attack a privacy claim with canaries or membership inference. Exit code 1 if the claim is violated.

    Canaries give a lower bound on epsilon. Without options the command attacks the example of the README: eight
    sites with 50 records each, epsilon = 1 per record.

    Example: dpvalue audit --mechanism laplace --runs 2000
    """
    with failing_clearly():
        from sklearn.preprocessing import StandardScaler

        from dpvalue.models import TREES
        from dpvalue.privacy.budget import Privacy
        from dpvalue.streams import require_seed

        privacy = Privacy(epsilon, delta, unit, neighbours, accounting, mechanism)
        require_choice("attack", attack, ("canaries", "membership"))
        require_choice("model", model, ("logistic", TREES))
        require_seed(seed)
        fields: SettingsKeywords = {
            "model": model,
            "schedule": None if (model, schedule) == (TREES, "replay") else schedule,
            "permutations": permutations,
            "preprocess": StandardScaler(),
            "seed": seed,
        }
        if attack == "membership":
            holds = _membership(data, runs or 40, privacy, fields)
        else:
            holds = _canaries(data, (parties, records), runs or 1000, {"privacy": privacy, **fields})
    if not holds:
        raise typer.Exit(1)


def _canaries(data: str, shape: tuple[int, int], runs: int, fields: SettingsKeywords) -> bool:
    from dpvalue.auditing.audit import audit as run_audit
    from dpvalue.runs.demo import embedded

    X, y = embedded(data)
    audited = run_audit(shape[0], (X[400:], y[400:]), records=shape[1], runs=runs, **fields)
    out.print(str(audited))
    return audited.holds


def _membership(data: str, trials: int, privacy: Privacy, fields: SettingsKeywords) -> bool:
    import numpy as np

    from dpvalue.auditing.membership import membership_attack
    from dpvalue.runs.demo import embedded

    X, y = embedded(data)
    order = np.random.default_rng(fields["seed"]).permutation(len(X))
    mine, public = order[:300], order[300:]
    out.print(f"{data}: infer membership from values; 25 members among 50 targets, 200 rows for shadow sets")
    holds = True
    exposed: SettingsKeywords = {**fields, "privacy": None, "schedule": None}
    for each in (exposed, {**fields, "privacy": replace(privacy, unit="party")}):
        attack = membership_attack((X[mine], y[mine]), (X[public], y[public]), trials=trials, **each)
        out.print(f"  {attack}")
        holds = holds and attack.holds
    return holds
