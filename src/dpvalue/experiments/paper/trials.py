"""Running an experiment: one JSON file per trial, written whole, so that it can be stopped and continued anywhere."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from contextlib import ExitStack
from dataclasses import dataclass
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from dpvalue.errors import DpvalueError
from dpvalue.experiments.bench.machine import facts
from dpvalue.experiments.paper.datasets import MissingDataError, load
from dpvalue.experiments.paper.resnets import load_weights
from dpvalue.progress import reporting
from dpvalue.storage import folder_lock, write_whole

Trial = dict[str, Any]
TOGETHER = 60
"""At most so many trials are made at once: none of them is kept before all are done."""


@dataclass(frozen=True)
class TrialScale:
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
        together: makes several repetitions, whose walks a GPU takes side by side; None if there is nothing to share.
    """

    name: str
    title: str
    data: tuple[str, ...]
    trials: int
    minutes: str
    trial: Callable[[TrialScale, int], Trial]
    show: Callable[[list[Trial], Path], str]
    check: Callable[[list[Trial], bool], None]
    weights: tuple[str, ...] = ()
    walks: str | None = None
    together: Callable[[TrialScale, Sequence[int]], list[Trial]] | None = None

    def place(self, scale: TrialScale, folder: Path) -> Path:
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


def first_of(together: Callable[[TrialScale, Sequence[int]], list[Trial]], scale: TrialScale, number: int) -> Trial:
    """Make one repetition of those that can be made together."""
    return together(scale, [number])[0]


def missing_trials(experiment: Experiment, scale: TrialScale, folder: Path) -> list[int]:
    """Return the numbers of the trials that are not there yet."""
    count = min(2, experiment.trials) if scale.quick else experiment.trials
    place = experiment.place(scale, folder)
    return [number for number in range(count) if not (place / f"trial-{number}.json").is_file()]


def missing_batches(experiment: Experiment, scale: TrialScale, folder: Path) -> list[list[int]]:
    """Return the same in batches: on a GPU those that share walks are made at once, up to `TOGETHER` of them."""
    missing, size = missing_trials(experiment, scale, folder), 1
    if experiment.together is not None and scale.device != "cpu":
        size = TOGETHER
    return [missing[start : start + size] for start in range(0, len(missing), size)]


def run_trials(
    experiment: Experiment, scale: TrialScale, folder: Path, workers: int, report: Callable[[str, int, int], None]
) -> list[Trial]:
    """Run the trials that are not there yet; return all of them, in order."""
    batches, place = missing_batches(experiment, scale, folder), experiment.place(scale, folder)
    done, total = 0, sum(map(len, batches))
    if workers == 1 or len(batches) < 2:
        for numbers in batches:
            keep_trials(experiment.name, scale, numbers, place)
            done += len(numbers)
            report(experiment.name, done, total)
    else:
        with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
            jobs = {pool.submit(keep_trials, experiment.name, scale, one, place): len(one) for one in batches}
            for job in as_completed(jobs):
                job.result()
                done += jobs[job]
                report(experiment.name, done, total)
    return stored_trials(experiment, scale, folder)


def make_page(experiment: Experiment, scale: TrialScale, folder: Path, workers: int) -> tuple[Path, str]:
    """Run what is missing; write the figure and a page, and return its path and the table.

    Raises if another process is at it: what both would make is made once.
    """
    size = "quick" if scale.quick else "full"
    path = folder / experiment.name / size
    with ExitStack() as locks:
        for place in sorted({experiment.place(scale, folder), path}):
            locks.enter_context(folder_lock(place))
        return _make_page(experiment, scale, folder, workers, path)


def _make_page(experiment: Experiment, scale: TrialScale, folder: Path, workers: int, path: Path) -> tuple[Path, str]:
    """The same, while no other process writes there."""
    size = path.name
    with reporting(progress=True) as tell:
        trials = run_trials(experiment, scale, folder, workers, tell)
    try:
        table = experiment.show(trials, path.with_name(f"{size}-figure"))
    except KeyError as error:
        place = experiment.place(scale, folder)
        raise DpvalueError(f"the trials in {place} lack {error}: another version made them, remove them") from None
    made_on = (", ".join(f"{name} {fact}" for name, fact in one["machine"].items()) for one in trials)
    machines = "; ".join(dict.fromkeys(made_on))
    page = path.with_name(f"{size}.md")
    text = (
        f"# {experiment.name}\n\n{experiment.title}. {len(trials)} trial(s), mean (standard error)."
        f"{' In small, to see that it works: --full has the sizes above.' if scale.quick else ''}\n\n{table}\n"
        f"![{experiment.name}]({size}-figure.png)\n\nMachine: {machines}.\n"
    )
    write_whole(page, text.encode())
    return page, table


def stored_trials(experiment: Experiment, scale: TrialScale, folder: Path) -> list[Trial]:
    """Return the trials that are there, in order."""
    place = experiment.place(scale, folder)
    found = sorted(place.glob("trial-*.json"), key=lambda path: int(path.stem.split("-")[1]))
    return [json.loads(path.read_text()) for path in found]


def keep_trials(name: str, scale: TrialScale, numbers: Sequence[int], place: Path) -> None:
    """Make trials, together where they share walks, and write their files."""
    from dpvalue.experiments.paper import EXPERIMENTS  # which import this module

    experiment = EXPERIMENTS[name]
    if experiment.together is not None:
        made = experiment.together(scale, numbers)
    else:
        made = [experiment.trial(scale, number) for number in numbers]
    place.mkdir(parents=True, exist_ok=True)
    for number, trial in zip(numbers, made, strict=True):
        content = json.dumps({"trial": number, "machine": facts(), **trial}, indent=1)
        write_whole(place / f"trial-{number}.json", f"{content}\n".encode())
