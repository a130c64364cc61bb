"""The settings of one run, checked: everything but the parties and the utility."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError, require_choice, require_positive
from dpvalue.models import ModelFactory
from dpvalue.planning.projection import Projection
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.clipping import RULES
from dpvalue.privacy.ledger import Ledger
from dpvalue.privacy.noise import KINDS as NOISE_KINDS
from dpvalue.releasing.checkpoint import Checkpoint
from dpvalue.releasing.schedule import Schedule
from dpvalue.streams import require_seed


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made; `dpvalue.value` describes each field."""

    model: str | ModelFactory
    privacy: Privacy | None
    schedule: Schedule
    permutations: int
    projection: Projection | str | None
    clip: float | str
    clip_rule: str
    learning_rate: float | str
    noise: str
    preprocess: Any
    engine: Local
    seed: int
    ledger: Ledger | None = None
    checkpoint: Checkpoint | None = None
    classes: tuple[Any, ...] | None = None

    def __post_init__(self) -> None:
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise DpvalueError(f"privacy must be a Privacy or None, got {self.privacy!r}")
        if not isinstance(self.engine, Local):
            raise DpvalueError(f"engine must be a Local, got {self.engine!r}")
        if self.projection is not None and self.projection != "auto" and not isinstance(self.projection, Projection):
            raise DpvalueError(f"projection must be a Projection, 'auto' or None, got {self.projection!r}")
        if self.ledger is not None:
            self._require_ledger_use(self.ledger)
        if self.checkpoint is not None and (self.privacy is None or self.ledger is not None):
            raise DpvalueError("checkpoint is for a private run without a ledger: a ledger keeps all releases itself")
        require_choice("clip_rule", self.clip_rule, ("auto", *RULES))
        require_choice("noise", self.noise, NOISE_KINDS)
        require_seed(self.seed)
        self.schedule.first_valued(self.permutations)
        for name, setting in (("clip", self.clip), ("learning_rate", self.learning_rate)):
            if isinstance(setting, str) and setting != "auto":
                raise DpvalueError(f"{name} must be a positive number or 'auto', got {setting!r}")
            if not isinstance(setting, str):
                require_positive(name, setting)
        rule = RULES.get(self.clip_rule)
        if rule is not None and rule.equal_lengths and self.privacy is None and isinstance(self.clip, str):
            raise DpvalueError(
                f"clip_rule={rule.name!r} needs a clip, the length to scale to, when there is no privacy"
            )

    def _require_ledger_use(self, ledger: object) -> None:
        if not isinstance(ledger, Ledger):
            raise DpvalueError(f"ledger must be a Ledger, got {ledger!r}")
        if self.privacy is None:
            raise DpvalueError("ledger must not be given without privacy: what is not private cannot be charged")
        if self.noise != "secure":
            raise DpvalueError(f"ledger needs noise='secure', got {self.noise!r}: a simulation promises nothing")
        if self.privacy.accounting != "composition":
            raise DpvalueError("ledger needs accounting='composition': it counts every release")

    @property
    def ledger_terms(self) -> str | None:
        """The budget of the ledger, in words; None without one."""
        return None if self.ledger is None else self.ledger.budget.terms

    @property
    def free_projection(self) -> bool:
        """Whether the directions are ours to choose: with privacy, for "replay"; the other kinds are the paper's."""
        return self.projection == "auto" and self.privacy is not None and self.schedule.kind == "replay"

    @property
    def is_fixed(self) -> bool:
        """Whether nothing about a release is ours to choose: all directions, and a given clipping norm."""
        return self.fixed_projection is None and not self.free_projection and not isinstance(self.clip, str)

    @property
    def fixed_projection(self) -> Projection | None:
        """The projection that was asked for; None, all directions, also where it is ours to choose."""
        return self.projection if isinstance(self.projection, Projection) else None
