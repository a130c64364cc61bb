"""`dpvalue demo`: all of `dpvalue run` on embedded data."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from dpvalue.cli.common import app, failing_clearly, option, out, show_done
from dpvalue.cli.run import run_job


@app.command()
def demo(
    epsilon: Annotated[float, option("Privacy budget per record; 1.")] = 1.0,
    out_: Annotated[Path, option("Output folder; dpvalue-demo.", "--out")] = Path("dpvalue-demo"),
    seed: Annotated[int, option("Seed for hospitals and permutations; 0.")] = 0,
) -> None:
    """Value ten synthetic hospitals under differential privacy and write a report. Three have flipped labels.

    Example: dpvalue demo --epsilon 0.5
    """
    with failing_clearly():
        from dpvalue.privacy.budget import Privacy
        from dpvalue.storage import folder_lock

        Privacy(epsilon)  # before anything is written
        with folder_lock(out_), folder_lock(out_ / "results"):
            _demonstrate(out_, epsilon, seed)


def _demonstrate(place: Path, epsilon: float, seed: int) -> None:
    """Write the files of the demonstration, value them, and print which bad hospitals were found."""
    from dpvalue.runs.config import make_config
    from dpvalue.runs.demo import CORRUPTED, HOSPITALS, RECORDS, write_demo
    from dpvalue.runs.folder import require_free
    from dpvalue.runs.sources import open_run

    folder = place / "results"
    require_free(folder, overwrite=True)
    config = make_config({**write_demo(place, seed), "epsilon": epsilon})
    out.print(
        f"{HOSPITALS} hospitals hold {RECORDS} records each of scikit-learn's breast cancer data. {CORRUPTED} of them "
        "have half of their labels flipped: which ones? The remaining records are the public set.\n"
    )
    job = open_run(config)
    plan = job.plan()
    out.print(f"{plan}\n", style="dim", markup=False)
    done = run_job(job, plan, folder)
    known = done.record.detection
    hits = 0 if known is None else round(known.precision * known.k)
    show_done(done, f"{hits} of the {CORRUPTED} bad hospitals are among the {CORRUPTED} lowest values.\n")
