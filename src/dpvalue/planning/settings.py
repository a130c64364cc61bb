"""The settings of a run: everything but the parties and the utility, in one value that every entry point takes."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypedDict, TypeVar

from dpvalue.display import changed_fields
from dpvalue.engine.engines import Engine, Local
from dpvalue.errors import DpvalueError, require_choice, require_positive
from dpvalue.models import TREES, ModelFactory
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.privacy.clipping import RULES
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.noise import KINDS as NOISE_KINDS
from dpvalue.protocol.projection import Projection
from dpvalue.protocol.schedule import Schedule, as_schedule
from dpvalue.streams import require_seed

Entry = TypeVar("Entry", bound=Callable[..., Any])
GAMES = ["auto", "refit", "steps"]
"""The values of `Settings.game`; `register_method` adds to them."""


class SettingsKeywords(TypedDict, total=False):
    """The fields of `Settings` as keywords."""

    model: str | ModelFactory
    privacy: Privacy | None
    game: str
    schedule: str | Schedule | None
    permutations: int
    projection: Projection | str | None
    clip: float | str
    clip_rule: str
    learning_rate: float | str
    noise: str
    preprocess: Any
    classes: Sequence[Any] | None
    ledger: Ledger | None
    checkpoint: str | Path | None
    engine: Engine
    seed: int


class EntryKeywords(SettingsKeywords, total=False):
    """The keywords of an entry point that reads data: the fields of `Settings`, labels and owners of rows."""

    target: str | None
    groups: Any
    persons: Any


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made.

    Attributes:
        model: "logistic", "linear", "cnn", a callable that returns an `nn.Module`; or "trees": data sets are valued by
            how many of their records fall into the leaves of public trees, by class (`docs/games.md`).
        privacy: the budget; None for no differential privacy.
        game: what is valued: "refit", what retraining on a coalition's data would give, from one release a party;
            "steps", the paper's, in which each party adds a step to a model; or "auto": "refit" for data sets as
            parties of a linear or logistic model, or of a network that ends in an `nn.Linear`, where schedule,
            projection, clip and learning rate are left open (`docs/games.md`), else "steps".
        schedule: a name or a `Schedule`; None is "replay" with privacy, own gradients ("independent") without.
        permutations: k of the paper's schedules; the most that a replay walks.
        projection: which public directions a release is made in: a `Projection`, None for all, or "auto": for "replay"
            with privacy what is expected to find most at the budget, by rehearsal on the public set; else all.
        clip: the clipping norm C, of what is released; "auto" takes it from the public set (none without privacy).
        clip_rule: "flat" scales down what is longer than C, "normalise" scales everything to C; or "auto".
        learning_rate: alpha; "auto" tunes it on the public set.
        noise: "secure" (from the operating system) or "fast" (seeded: a simulation).
        preprocess: a scikit-learn transformer that works row by row; a clone is fitted to the public features and
            applied to all rows. Of a frame also "columns": numbers are scaled, texts are categories; or "numbers":
            all columns are numbers, taken as they are.
        classes: all classes, if the public set lacks some; rows with other labels contribute zero.
        ledger: where releases are charged and kept: a `Ledger`. The same call again gets the same releases back.
        checkpoint: a folder that keeps releases as they are made, where there is no ledger: the same call goes on from
            there if a run died. It is for one run: it could not tell other private rows.
        engine: where to compute.
        seed: of the public randomness: permutations, initial model, and noise="fast".

    Example:
        >>> Settings(model="linear", permutations=200)
        Settings(model='linear', privacy=Privacy(epsilon=1.0, delta=5e-05, unit='party'), permutations=200)
    """

    model: str | ModelFactory = "logistic"
    privacy: Privacy | None = Privacy()  # noqa: RUF009  (immutable)
    game: str = "auto"
    schedule: str | Schedule | None = None
    permutations: int = 1000
    projection: Projection | str | None = "auto"
    clip: float | str = "auto"
    clip_rule: str = "auto"
    learning_rate: float | str = "auto"
    noise: str = "secure"
    preprocess: Any = None
    classes: Sequence[Any] | None = None
    ledger: Ledger | None = None
    checkpoint: str | Path | None = None
    engine: Engine = Local()  # noqa: RUF009  (immutable)
    seed: int = 0

    def __post_init__(self) -> None:
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise DpvalueError(f"privacy must be a Privacy or None, got {self.privacy!r}")
        if not isinstance(self.engine, Engine):
            raise DpvalueError(f"engine must be an Engine, such as Local(), got {self.engine!r}")
        if self.projection is not None and self.projection != "auto" and not isinstance(self.projection, Projection):
            raise DpvalueError(f"projection must be a Projection, 'auto' or None, got {self.projection!r}")
        if self.ledger is not None:
            self._require_ledger_use(self.ledger)
        if self.checkpoint is not None and (self.privacy is None or self.ledger is not None):
            raise DpvalueError(
                "checkpoint must not be given without privacy or with a ledger: a ledger stores all releases itself"
            )
        require_choice("game", self.game, GAMES)
        if self.model == TREES and self.game != "auto":
            raise DpvalueError(
                f"game must be left open for model={TREES!r}, got {self.game!r}: trees have one of their own"
            )
        if self.model == TREES and self._refit_conflict:
            raise DpvalueError(f"model={TREES!r} makes one release its own way: leave {self._refit_conflict} unset")
        if self.game not in ("auto", "steps") and self._refit_conflict:
            raise DpvalueError(f"game={self.game!r} makes one release of its own: leave {self._refit_conflict} unset")
        require_choice("clip_rule", self.clip_rule, ("auto", *RULES))
        require_choice("noise", self.noise, NOISE_KINDS)
        require_seed(self.seed)
        self.resolved_schedule.first_valued(self.permutations)
        for name, setting in (("clip", self.clip), ("learning_rate", self.learning_rate)):
            if isinstance(setting, str) and setting != "auto":
                raise DpvalueError(f"{name} must be a positive number or 'auto', got {setting!r}")
            if not isinstance(setting, str):
                require_positive(name, setting)
        rule = RULES.get(self.clip_rule)
        if rule is not None and rule.equal_lengths and self.privacy is None and isinstance(self.clip, str):
            raise DpvalueError(f"clip_rule={rule.name!r} without privacy needs clip, the norm to scale to")

    def __repr__(self) -> str:
        return changed_fields(self, "model", "privacy")

    def _require_ledger_use(self, ledger: object) -> None:
        if not isinstance(ledger, Ledger):
            raise DpvalueError(f"ledger must be a Ledger, got {ledger!r}")
        if self.privacy is None:
            raise DpvalueError("ledger must not be given without privacy: there is no epsilon to charge")
        if self.noise != "secure":
            raise DpvalueError(f"ledger needs noise='secure', got {self.noise!r}: a simulation has no guarantee")
        if self.privacy.accounting != "composition":
            raise DpvalueError("ledger needs accounting='composition': it counts every release")
        ledger.require_unit(self.privacy)

    @property
    def _refit_conflict(self) -> str:
        """The first setting that is given and that the refit game does not accept; empty if there is none."""
        defaults = {name: getattr(Settings, name) for name in ("projection", "clip", "clip_rule", "learning_rate")}
        names = [name for name, default in defaults.items() if getattr(self, name) != default]
        return ([*names, "schedule"] if self.schedule is not None else [*names, ""])[0]

    @property
    def may_refit(self) -> bool:
        """Whether the settings allow the refit game."""
        return self.game != "steps" and self.model != TREES and not self._refit_conflict

    @property
    def resolved_schedule(self) -> Schedule:
        """The schedule, or its default if none is given."""
        return as_schedule(self.schedule, private=self.privacy is not None)

    @property
    def keeper(self) -> Ledger | Checkpoint | None:
        """The ledger or checkpoint that stores releases on disk; None without one."""
        if self.ledger is not None or self.checkpoint is None:
            return self.ledger
        return Checkpoint(self.checkpoint)

    def require_no_keeper(self, entry_point: str) -> None:
        """Raise if a ledger or a checkpoint is given to an entry point that makes many runs."""
        for name in ("ledger", "checkpoint"):
            if getattr(self, name) is not None:
                raise DpvalueError(f"{name} must not be given to {entry_point}: it makes many runs, on rows of its own")

    @property
    def ledger_terms(self) -> str | None:
        """The budget and the terms of the ledger, in words; None without a ledger."""
        return None if self.ledger is None else self.ledger.terms.words

    @property
    def free_projection(self) -> bool:
        """Whether the library chooses the directions: with privacy and the schedule "replay" only."""
        return self.projection == "auto" and self.privacy is not None and self.resolved_schedule.kind == "replay"

    @property
    def is_fixed(self) -> bool:
        """Whether no choice of a release is open: all directions, and a given clipping norm."""
        return self.fixed_projection is None and not self.free_projection and not isinstance(self.clip, str)

    @property
    def fixed_projection(self) -> Projection | None:
        """The given projection; None for all directions, and if the library chooses it."""
        return self.projection if isinstance(self.projection, Projection) else None


def settings_of(settings: Settings | None, keywords: Mapping[str, Any], **defaults: Any) -> Settings:
    """Return the settings of an entry point: a `Settings`, or its defaults, changed by keywords."""
    if settings is not None and not isinstance(settings, Settings):
        raise DpvalueError(f"settings must be a Settings, got {settings!r}")
    unknown = [name for name in keywords if name not in Settings.__dataclass_fields__]
    if unknown:
        raise TypeError(f"unknown setting {unknown[0]!r}; the settings are {', '.join(Settings.__dataclass_fields__)}")
    return replace(settings or Settings(**defaults), **keywords)


def read_keywords(
    settings: Settings | None, keywords: EntryKeywords, **defaults: Any
) -> tuple[Settings, tuple[str | None, Any, Any]]:
    """Return the settings of an entry point that reads data (`settings_of`), and its target, groups and persons."""
    fields = {name: value for name, value in keywords.items() if name not in ("target", "groups", "persons")}
    return settings_of(settings, fields, **defaults), (
        keywords.get("target"),
        keywords.get("groups"),
        keywords.get("persons"),
    )


def shows_settings(keywords: type[SettingsKeywords], **defaults: Any) -> Callable[[Entry], Entry]:
    """Make `help` and editors show the keywords of an entry point, with the defaults of `Settings` or its own."""

    def show(entry: Entry) -> Entry:
        signature = inspect.signature(entry)
        own_parameters = [
            parameter
            for parameter in signature.parameters.values()
            if parameter.kind is not inspect.Parameter.VAR_KEYWORD
        ]
        keyword_parameters = [
            inspect.Parameter(
                name,
                inspect.Parameter.KEYWORD_ONLY,
                default=defaults.get(name, getattr(Settings, name, None)),
                annotation=annotation.__forward_arg__,
            )
            for name, annotation in keywords.__annotations__.items()
        ]
        entry.__signature__ = signature.replace(parameters=[*own_parameters, *keyword_parameters])  # type: ignore[attr-defined]
        return entry

    return show
