"""The settings of one run, checked: everything but the parties and the utility."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from dpvalue.engine.local import Local
from dpvalue.errors import DpvalueError, require_choice, require_positive
from dpvalue.models import ModelFactory
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.noise import KINDS as NOISE_KINDS
from dpvalue.schedule import Schedule
from dpvalue.streams import require_seed

CLIP_RULES = ("flat",)


@dataclass(frozen=True, kw_only=True)
class Settings:
    """How a run is made; `dpvalue.value` describes each field."""

    model: str | ModelFactory
    privacy: Privacy | None
    schedule: Schedule
    permutations: int
    clip: float | str
    clip_rule: str
    learning_rate: float | str
    noise: str
    preprocess: Any
    engine: Local
    seed: int

    def __post_init__(self) -> None:
        if self.privacy is not None and not isinstance(self.privacy, Privacy):
            raise DpvalueError(f"privacy must be a Privacy or None, got {self.privacy!r}")
        if not isinstance(self.engine, Local):
            raise DpvalueError(f"engine must be a Local, got {self.engine!r}")
        require_choice("clip_rule", self.clip_rule, CLIP_RULES)
        require_choice("noise", self.noise, NOISE_KINDS)
        require_seed(self.seed)
        self.schedule.first_valued(self.permutations)
        for name, setting in (("clip", self.clip), ("learning_rate", self.learning_rate)):
            if isinstance(setting, str) and setting != "auto":
                raise DpvalueError(f"{name} must be a positive number or 'auto', got {setting!r}")
            if not isinstance(setting, str):
                require_positive(name, setting)

    @property
    def releases(self) -> int:
        """Noisy messages per party."""
        return self.schedule.releases(self.permutations)
