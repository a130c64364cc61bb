"""What choices are made from: the public set, the settings and the parties' public sizes."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from dpvalue.arrays import Ints
from dpvalue.data.utility import PublicSet
from dpvalue.models import Model
from dpvalue.planning.rehearsal import Rehearsal
from dpvalue.planning.settings import Settings


@dataclass(frozen=True)
class Situation:
    """What a choice may depend on, all of it public; `sizes` and `units` are the parties' rows and protected units."""

    model: Model
    initial: Tensor
    public: PublicSet
    sizes: Ints
    units: Ints
    settings: Settings

    @property
    def n(self) -> int:
        """The number of parties."""
        return len(self.sizes)

    @property
    def has_sets(self) -> bool:
        """Whether some party is a data set of several rows."""
        return int(self.sizes.max(initial=0)) > 1

    def averaged_units(self, unit: str) -> Ints:
        """Return the number of units of each party whose statistics are averaged; a whole party is its records."""
        return self.sizes if unit == "party" else self.units

    def rehearsal(self) -> Rehearsal:
        """Return the public set, ready to try ways to release on."""
        engine, seed = self.settings.engine, self.settings.seed
        return Rehearsal(self.model, self.initial, self.public, self.sizes, self.units, engine, seed)
