"""The command line: `demo`, `audit`, `ledger`, `bench`. Bad input ends with one clear line and exit code 2."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Annotated, NoReturn

import typer
from rich import box
from rich.console import Console
from rich.table import Table as Grid

from dpvalue import DpvalueError, Privacy, __version__
from dpvalue.errors import require_choice

app = typer.Typer(
    help="What is each party's data worth to a model? Values under differential privacy.",
    no_args_is_help=True,
    pretty_exceptions_show_locals=False,  # a traceback must not print private rows
)
out = Console(highlight=False)


def _show_version(wanted: bool) -> None:
    if wanted:
        out.print(f"dpvalue {__version__}")
        raise typer.Exit


@app.callback()
def main(
    version: Annotated[
        bool, typer.Option("--version", callback=_show_version, is_eager=True, help="Show the version and leave.")
    ] = False,
) -> None:
    """What is each party's data worth to a model? Values under differential privacy."""


@app.command()
def demo(
    epsilon: Annotated[float, typer.Option(help="Privacy budget of each record.")] = 1.0,
    seed: Annotated[int, typer.Option(help="Seed of the made-up hospitals and of the permutations.")] = 0,
) -> None:
    """Value ten made-up hospitals, three of them with bad labels, without exposing a record.

    Example: dpvalue demo --epsilon 0.5
    """
    try:
        _demo(epsilon, seed)
    except DpvalueError as error:
        _fail(error)


@app.command()
def bench(
    cases: Annotated[list[str] | None, typer.Argument(help="cpu, gpu, or names of cases; cpu by default.")] = None,
    json: Annotated[Path | None, typer.Option(help="Also write the numbers and the machine's facts here.")] = None,
) -> None:
    """Time the engine beside the literal Algorithm 1, in one run on made data.

    Example: dpvalue bench covertype --json covertype.json
    """
    from dpvalue.bench import run_cases

    try:
        run_cases(cases or ["cpu"], json)
    except DpvalueError as error:
        _fail(error)
    if json is not None:
        out.print(f"written to {json}")


@app.command()
def audit(
    attack: Annotated[str, typer.Option(help="canaries, or membership.")] = "canaries",
    data: Annotated[str, typer.Option(help="The public rows: breast-cancer or diabetes.")] = "breast-cancer",
    epsilon: Annotated[float, typer.Option(help="The budget whose claim is attacked.")] = 1.0,
    delta: Annotated[float, typer.Option(help="Its delta.")] = 5e-5,
    unit: Annotated[str, typer.Option(help="party, record or person; membership: party.")] = "record",
    neighbours: Annotated[str, typer.Option(help="zero_out or replace.")] = "zero_out",
    accounting: Annotated[str, typer.Option(help="composition, or the paper's poisson.")] = "composition",
    mechanism: Annotated[str, typer.Option(help="auto, gaussian or laplace.")] = "auto",
    schedule: Annotated[str, typer.Option(help="replay, lagged, or a schedule of the paper.")] = "replay",
    parties: Annotated[int, typer.Option(help="Canaries: how many parties.")] = 8,
    records: Annotated[int, typer.Option(help="Canaries: records of each party.")] = 50,
    permutations: Annotated[int, typer.Option(help="Permutations of one run.")] = 100,
    runs: Annotated[int, typer.Option(help="Canaries: runs with, and as many without. Membership: trials.")] = 0,
    seed: Annotated[int, typer.Option(help="Seed of public randomness.")] = 0,
) -> None:
    """Attack a claim: plant canaries and bound epsilon from below, or infer membership. Exit code 1 if it breaks.

    Without options: the example of the README, eight sites with 50 records each at epsilon = 1 per record.

    Example: dpvalue audit --mechanism laplace --runs 2000
    """
    try:
        privacy = Privacy(epsilon, delta, unit, neighbours, accounting, mechanism)
        require_choice("attack", attack, ("canaries", "membership"))
        if attack == "membership":
            holds = _membership(data, privacy, schedule, permutations, runs or 40, seed)
        else:
            holds = _canaries(data, privacy, schedule, (parties, records), permutations, runs or 1000, seed)
    except DpvalueError as error:
        _fail(error)
    if not holds:
        raise typer.Exit(1)


ledger_app = typer.Typer(
    help="What was released of one owner's data, and what is left of its budget.", no_args_is_help=True
)
app.add_typer(ledger_app, name="ledger")


@ledger_app.command("show")
def ledger_show(path: Annotated[Path, typer.Argument(help="The ledger's file.")]) -> None:
    """List all entries, what they spent together, and the head of the chain to keep elsewhere.

    Example: dpvalue ledger show hospital.ledger
    """
    from dpvalue.privacy.ledger import Ledger

    try:
        ledger = Ledger(path)
        grid = Grid(box=box.SIMPLE_HEAD)
        for name in ("entry", "purpose", "round", "releases", "noise", "unit", "day"):
            grid.add_column(name)
        for entry in ledger.entries():
            charge = entry.charge
            noise = f"{charge.law} {charge.noise_scale:.3g}"
            cells = (entry.number, entry.purpose, entry.round, charge.releases, noise, charge.unit)
            grid.add_row(*map(str, cells), entry.time[:10])
        out.print(grid)
        out.print(f"budget: {ledger.budget.terms}")
        out.print(f"spent: epsilon = {ledger.spent:.4g}")
        out.print(f"head: {ledger.head()}", soft_wrap=True)
    except DpvalueError as error:
        _fail(error)


@ledger_app.command("verify")
def ledger_verify(
    path: Annotated[Path, typer.Argument(help="The ledger's file.")],
    head: Annotated[str | None, typer.Option(help="A head that was kept elsewhere.")] = None,
) -> None:
    """Check the chain of digests, and that it continues a head that was kept elsewhere.

    Example: dpvalue ledger verify hospital.ledger --head 3:0f3a...
    """
    from dpvalue.privacy.ledger import Ledger

    try:
        count = Ledger(path).verify(head)
    except DpvalueError as error:
        _fail(error)
    out.print(f"{count} entries, all digests right" + (", and the kept head is among them" if head else ""))


def _fail(error: DpvalueError) -> NoReturn:
    """One clear line, exit code 2."""
    Console(stderr=True, highlight=False).print(f"[red]error:[/red] {error}", soft_wrap=True)
    raise typer.Exit(2)


def _canaries(
    data: str, privacy: Privacy, schedule: str, shape: tuple[int, int], permutations: int, runs: int, seed: int
) -> bool:
    from sklearn.preprocessing import StandardScaler

    from dpvalue.audit import audit as run_audit
    from dpvalue.demo import embedded

    X, y = embedded(data)
    public = X[400:], y[400:]
    found = run_audit(
        shape[0],
        public,
        records=shape[1],
        privacy=privacy,
        schedule=schedule,
        permutations=permutations,
        preprocess=StandardScaler(),
        runs=runs,
        seed=seed,
    )
    out.print(str(found), soft_wrap=True)
    return found.holds


def _membership(data: str, privacy: Privacy, schedule: str, permutations: int, trials: int, seed: int) -> bool:
    import numpy as np
    from sklearn.preprocessing import StandardScaler

    from dpvalue.demo import embedded
    from dpvalue.membership import membership_attack

    X, y = embedded(data)
    order = np.random.default_rng(seed).permutation(len(X))
    mine, public = order[:300], order[300:]
    per_row = replace(privacy, unit="party")
    out.print(f"{data}: 25 members among 50 targets, 200 rows for shadow sets; is a row a member, by its value?")
    holds = True
    for budget, kind in ((None, None), (per_row, schedule)):
        found = membership_attack(
            (X[mine], y[mine]),
            (X[public], y[public]),
            privacy=budget,
            schedule=kind,
            permutations=permutations,
            preprocess=StandardScaler(),
            trials=trials,
            seed=seed,
        )
        out.print(f"  {found}", soft_wrap=True)
        holds = holds and found.holds
    return holds


def _demo(epsilon: float, seed: int) -> None:
    from dpvalue.demo import CORRUPTED, HOSPITALS, RECORDS, make_demo

    made = make_demo(epsilon, seed)
    out.print(
        f"{HOSPITALS} hospitals hold {RECORDS} records each of scikit-learn's breast cancer set; {CORRUPTED} have half "
        "of their labels flipped. Which ones? The rest of the set is public and serves as the judge.\n"
    )
    out.print(str(made.plan()), style="dim")
    out.print()
    result = made.value(progress=True if sys.stderr.isatty() else _plain_progress)
    noise = result.noise_std()
    title = f"Data values ± DP noise, epsilon = {epsilon:g} per record"
    grid = Grid(title=title, title_justify="left", title_style="bold", box=box.SIMPLE_HEAD)
    grid.add_column("hospital")
    for kind in result.semivalues:
        grid.add_column(kind.name, justify="right", no_wrap=True)
    grid.add_column("rank", justify="right")
    grid.add_column("labels")
    frame = result.frame()
    for party in frame.sort_values("rank").index:
        cells = [f"{result.values[k.name][party]:+.3f} ± {noise[k.name][party]:.3f}" for k in result.semivalues]
        truth = "[red]bad[/red]" if made.corrupted[party] else "clean"
        grid.add_row(str(frame["party"][party]), *cells, str(frame["rank"][party]), truth)
    out.print(grid)
    lowest = set(result.top(CORRUPTED, lowest=True)["party"])
    hits = sum(name in lowest for name, bad in zip(result.table.names, made.corrupted, strict=True) if bad)
    out.print(f"\n{hits} of the {CORRUPTED} bad hospitals are among the {CORRUPTED} lowest values.\n")
    out.print(str(result.guarantee))


def _plain_progress(stage: str, done: int, total: int) -> None:
    """One line a step, for logs."""
    Console(stderr=True, highlight=False).print(f"{stage} {done}/{total}", style="dim")
