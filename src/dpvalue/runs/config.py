"""Every option of a run from files, as one immutable value that a TOML file can hold."""

from __future__ import annotations

import json
import re
import tomllib
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from reprlib import repr as short
from typing import Any

from dpvalue.data.schema import PREPROCESSORS
from dpvalue.data.utility import METRICS
from dpvalue.errors import DpvalueError, require_choice, require_count, require_positive
from dpvalue.games.semivalues import semivalues
from dpvalue.methods import GAMES
from dpvalue.models import COLUMN_MODELS, TASK_OF, TREES
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.ledger import Ledger
from dpvalue.stored import is_whole, parse

TASKS = ("auto", "classification", "regression")

_LISTS = ("train", "drop", "semivalue", "classes", "sizes")

_NOT_ASCII = re.compile(r"[^ -~]")


def _escaped(letter: re.Match[str]) -> str:
    code = ord(letter[0])
    return f"\\u{code:04x}" if code < 2**16 else f"\\U{code:08x}"


@dataclass(frozen=True, kw_only=True)
class RunConfig:
    """The settings of a run from files, as the flat options of `dpvalue run`.

    A study (`dpvalue job`) has no private files; `sizes` are its parties' numbers of records (or persons).
    """

    train: tuple[str, ...] = ()
    test: str
    target: str
    sizes: tuple[int, ...] = ()
    group: str | None = None
    person: str | None = None
    truth: str | None = None
    drop: tuple[str, ...] = ()
    task: str = "auto"
    model: str = "auto"
    metric: str = "loss"
    preprocess: str = "columns"
    classes: tuple[str, ...] = ()
    private: bool = True
    epsilon: float = 1.0
    delta: float = 5e-5
    unit: str = "party"
    neighbours: str = "zero_out"
    mechanism: str = "auto"
    parties_per_person: int = 1
    semivalue: tuple[str, ...] = ("shapley",)
    game: str = "auto"
    schedule: str | None = None
    permutations: int = 1000
    seed: int = 0
    pay: float | None = None
    ledger: str | None = None
    head: str | None = None
    purpose: str = "value"

    def __post_init__(self) -> None:
        require_choice("task", self.task, TASKS)
        require_choice("model", self.model, ("auto", *COLUMN_MODELS))
        require_choice("metric", self.metric, METRICS)
        require_choice("preprocess", self.preprocess, PREPROCESSORS)
        self.fixed_task  # noqa: B018  (raises where options are of two tasks)
        require_choice("game", self.game, GAMES)
        if self.model == TREES and (self.game != "auto" or self.schedule is not None):
            raise DpvalueError(f"model {TREES} makes one release its own way: leave game and schedule out")
        if self.game == "refit" and self.schedule is not None:
            raise DpvalueError(
                f"schedule {self.schedule} is for game steps: game refit makes one release of its own; give only "
                "one of them"
            )
        if bool(self.train) == bool(self.sizes):
            raise DpvalueError("train must name at least one file; for a study, give sizes instead")
        for size in self.sizes:
            require_count("sizes", size)
        if self.sizes and (not self.private or len(self.sizes) < 2):
            raise DpvalueError("sizes must be given for at least two parties, in a private run")
        if len(self.train) > 1 and self.group is not None:
            raise DpvalueError("group must not be given with several files: each file is one party")
        if self.private and self.unit == "person" and self.person is None and self.train:
            raise DpvalueError("person must be given for unit person: the column of persons' ids")
        if self.head is not None and self.ledger is None:
            raise DpvalueError("head needs a ledger: it is the file that stores its latest hash")
        if self.ledger is not None and not self.private:
            raise DpvalueError("ledger must not be given without privacy")
        if self.pay is not None:
            require_positive("pay", self.pay)
        self.privacy  # noqa: B018  (raises for a bad budget)
        semivalues(self.semivalue)  # raises for an unknown name, before anything is spent

    @property
    def privacy(self) -> Privacy | None:
        """The budget of the run; None without privacy."""
        if not self.private:
            return None
        budget = self.epsilon, self.delta, self.unit, self.neighbours
        return Privacy(*budget, mechanism=self.mechanism, parties_per_person=self.parties_per_person)

    @property
    def fixed_task(self) -> str | None:
        """The task that the options name; None if the public file decides it."""
        task_of_option = {
            "task": None if self.task == "auto" else self.task,
            "model": TASK_OF.get(self.model),
            "metric": METRICS[self.metric].task,
        }
        fixed = {f"{name} {getattr(self, name)}": task for name, task in task_of_option.items() if task is not None}
        if len(set(fixed.values())) > 1:
            words = ", ".join(f"{option} is for {task}" for option, task in fixed.items())
            raise DpvalueError(f"task, model and metric must fit the same task: {words}")
        return next(iter(fixed.values()), None)

    def open_ledger(self) -> Ledger | None:
        """Return the ledger of the run, or None; raise if its unit differs from that of the run."""
        privacy = self.privacy
        if self.ledger is None or privacy is None:
            return None
        ledger = Ledger(self.ledger, self.purpose, self.head)
        ledger.require_unit(privacy)
        return ledger

    def to_toml(self) -> str:
        """Return a TOML document that `read_config` turns back into this."""
        lines = ["# dpvalue run --config run.toml repeats this run (with fresh noise, unless a ledger keeps the old)."]
        if self.sizes:
            lines = ["# What a study was made by: dpvalue job verify makes its job again."]
        for name, value in asdict(self).items():
            if value is None:
                continue
            # Strings, numbers, booleans and lists of strings are written the same in JSON and in TOML, but for escapes.
            lines.append(f"{name} = {_NOT_ASCII.sub(_escaped, json.dumps(value, ensure_ascii=False))}")
        return "\n".join(lines) + "\n"


def read_config(path: Path) -> dict[str, Any]:
    """Return the options in a TOML file, by name."""
    try:
        return parse_options(path.read_text(encoding="utf-8"), str(path))
    except (OSError, UnicodeDecodeError) as error:
        raise DpvalueError(f"{path} cannot be read as TOML: {error}") from None


def parse_options(text: str, source: str) -> dict[str, Any]:
    """Return the options in a TOML document, by name; `source` names it in errors."""
    options: dict[str, Any] = parse(tomllib.loads, text, source, "cannot be read as TOML")
    return options


def make_config(options: dict[str, Any]) -> RunConfig:
    """Return the options as a `RunConfig`; raise for an unknown name, a wrong type or a missing one."""
    types = {field.name: str(field.type) for field in fields(RunConfig)}
    for name, value in options.items():
        if name not in types:
            raise DpvalueError(f"unknown option {name!r}; the options are {', '.join(types)}")
        _require_type(name, value, types[name])
    for name in ("train", "test", "target"):
        if not options.get(name) and not (name == "train" and options.get("sizes")):
            hint = {"train": "the private files", "test": "--test, the public file", "target": "--target, the label"}
            raise DpvalueError(f"{name} must be given: {hint[name]}")
    ready: dict[str, Any] = {name: tuple(value) if name in _LISTS else value for name, value in options.items()}
    return RunConfig(**ready)


def _require_type(name: str, value: Any, declared: str) -> None:
    if name == "sizes":
        ok = isinstance(value, list | tuple) and all(map(is_whole, value))
        expected = "a list of whole numbers below 2^63"
    elif name in _LISTS:
        ok = isinstance(value, list | tuple) and all(isinstance(text, str) for text in value)
        expected = "a list of texts"
    elif "str" in declared:
        ok, expected = isinstance(value, str), "a text"
    elif declared == "bool":
        ok, expected = isinstance(value, bool), "true or false"
    elif declared == "int":
        ok, expected = is_whole(value), "a whole number below 2^63"
    else:
        ok, expected = isinstance(value, int | float) and not isinstance(value, bool), "a number"
    if not ok:
        raise DpvalueError(f"{name} must be {expected}, got {short(value)}")
