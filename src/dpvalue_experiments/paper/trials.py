"""Running an experiment: one JSON file per trial, written whole, so that it can be stopped and continued anywhere."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpvalue.errors import DpvalueError
from dpvalue.progress import reporting
from dpvalue_experiments.bench.machine import facts
from dpvalue_experiments.paper.datasets import MissingDataError, load
from dpvalue_experiments.paper.resnets import load_weights

Trial = dict[str, Any]


@dataclass(frozen=True)
class Scale:
    """How large: quick (minutes on two cores, for tests) or full (the paper's sizes); where data and results are."""

    quick: bool
    data: str | None
    device: str = "cpu"


@dataclass(frozen=True)
class Experiment:
    """A table or figure of the paper.

    Attributes:
        name: on the command line.
        title: what it shows, as its caption says.
        data: the data sets that it takes.
        trials: independent repetitions in full.
        minutes: about how long in full, on two cores (or on a GPU).
        trial: makes one repetition: takes the scale and the number of the trial.
        show: draws the figure and returns the table as Markdown: takes all trials, and the path without its ending.
        check: raises if the trials do not show what the paper says; takes all trials and whether they are quick ones.
        weights: the pre-trained networks that it takes.
        walks: the experiment whose trials it shows, if they are not its own.
    """

    name: str
    title: str
    data: tuple[str, ...]
    trials: int
    minutes: str
    trial: Callable[[Scale, int], Trial]
    show: Callable[[list[Trial], Path], str]
    check: Callable[[list[Trial], bool], None]
    weights: tuple[str, ...] = ()
    walks: str | None = None

    def place(self, scale: Scale, folder: Path) -> Path:
        """Return the folder of its trials."""
        return folder / (self.walks or self.name) / ("quick" if scale.quick else "full")

    def has_data(self, folder: str | None) -> bool:
        """Whether all of its data sets and weights are there; damaged ones raise."""
        try:
            for name in self.data:
                load(name, folder)
            for name in self.weights:
                load_weights(name, folder)
        except MissingDataError:
            return False
        return True


def missing_trials(experiment: Experiment, scale: Scale, folder: Path) -> list[tuple[int, Path]]:
    """Return the trials that are not there yet: their numbers, and where they belong."""
    count = min(2, experiment.trials) if scale.quick else experiment.trials
    place = experiment.place(scale, folder)
    return [(number, place) for number in range(count) if not (place / f"trial-{number}.json").is_file()]


def run_trials(
    experiment: Experiment, scale: Scale, folder: Path, workers: int, report: Callable[[str, int, int], None]
) -> list[Trial]:
    """Run the trials that are not there yet; return all of them, in order."""
    missing = missing_trials(experiment, scale, folder)
    if workers == 1 or len(missing) < 2:
        for done, (number, place) in enumerate(missing, start=1):
            keep_trial(experiment.name, scale, number, place)
            report(experiment.name, done, len(missing))
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = [pool.submit(keep_trial, experiment.name, scale, number, place) for number, place in missing]
            for done, job in enumerate(as_completed(jobs), start=1):
                job.result()
                report(experiment.name, done, len(missing))
    return stored_trials(experiment, scale, folder)


def make_page(experiment: Experiment, scale: Scale, folder: Path, workers: int) -> tuple[Path, str]:
    """Run what is missing; write the figure and a page, and return its path and the table."""
    with reporting(progress=True) as tell:
        trials = run_trials(experiment, scale, folder, workers, tell)
    size = "quick" if scale.quick else "full"
    path = folder / experiment.name / size
    try:
        table = experiment.show(trials, path.with_name(f"{size}-figure"))
    except KeyError as error:
        place = experiment.place(scale, folder)
        raise DpvalueError(f"the trials in {place} lack {error}: another version made them, remove them") from None
    made_on = (", ".join(f"{name} {fact}" for name, fact in one["machine"].items()) for one in trials)
    machines = "; ".join(dict.fromkeys(made_on))
    page = path.with_name(f"{size}.md")
    page.write_text(
        f"# {experiment.name}\n\n{experiment.title}. {len(trials)} trial(s), mean (standard error)."
        f"{' In small, to see that it works: --full has the sizes above.' if scale.quick else ''}\n\n{table}\n"
        f"![{experiment.name}]({size}-figure.png)\n\nMachine: {machines}.\n",
        encoding="utf-8",
    )
    return page, table


def stored_trials(experiment: Experiment, scale: Scale, folder: Path) -> list[Trial]:
    """Return the trials that are there, in order."""
    place = experiment.place(scale, folder)
    found = sorted(place.glob("trial-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(path.read_text()) for path in found]


def keep_trial(name: str, scale: Scale, number: int, place: Path) -> None:
    """Run one trial and write its file."""
    from dpvalue_experiments.paper import EXPERIMENTS  # which import this module

    made = EXPERIMENTS[name].trial(scale, number)
    content = json.dumps({"trial": number, "machine": facts(), **made}, indent=1)
    place.mkdir(parents=True, exist_ok=True)
    scratch = place / f".trial-{number}.{os.getpid()}"
    scratch.write_text(content + "\n")
    scratch.replace(place / f"trial-{number}.json")
