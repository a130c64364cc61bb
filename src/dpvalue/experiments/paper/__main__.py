"""`python -m dpvalue.experiments.paper NAME ...`: the trials alone, at the paper's sizes, with torch and numpy alone.

`dpvalue reproduce` makes tables and figures of them.
"""

from __future__ import annotations

import argparse
import os
from concurrent.futures import ProcessPoolExecutor, as_completed
from multiprocessing import get_context
from pathlib import Path

from dpvalue.experiments.paper import EXPERIMENTS
from dpvalue.experiments.paper.trials import TrialScale, keep_trials, missing_batches


def main() -> None:
    """Run all trials that are not there yet, several at once."""
    parser = argparse.ArgumentParser(prog="dpvalue.experiments.paper")
    parser.add_argument("names", nargs="+")
    parser.add_argument("--data-dir")
    parser.add_argument("--out", type=Path, default=Path("results"))
    parser.add_argument("--workers", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    given = parser.parse_args()
    scale = TrialScale(quick=False, data=given.data_dir, device=given.device)
    todo = [
        (name, numbers, EXPERIMENTS[name].place(scale, given.out))
        for name in given.names
        for numbers in missing_batches(EXPERIMENTS[name], scale, given.out)
    ]
    os.environ["OMP_NUM_THREADS"] = "1"
    with ProcessPoolExecutor(given.workers, mp_context=get_context("spawn")) as pool:
        running = {pool.submit(keep_trials, name, scale, some, place): (name, *some) for name, some, place in todo}
        for one in as_completed(running):
            failed = one.exception()  # the others are not to be lost with it
            print(*running[one], "done" if failed is None else f"failed: {failed!r}", flush=True)  # noqa: T201
    if any(one.exception() is not None for one in running):
        raise SystemExit(1)


if __name__ == "__main__":
    main()
