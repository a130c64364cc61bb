"""The releases of a run through a ledger or a checkpoint: request, charge and stored bytes."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from dpvalue.arrays import Floats
from dpvalue.data.encoding import Encoding
from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.games.estimates import FIELDS, Estimate
from dpvalue.methods.base import Choice
from dpvalue.party.contributions import Contributions
from dpvalue.privacy.budget import Privacy
from dpvalue.privacy.charges import Charge, charge_of
from dpvalue.privacy.checkpoint import Checkpoint
from dpvalue.privacy.ledger import Ledger


@dataclass(frozen=True)
class Charging:
    """A ledger or a checkpoint, with the charge and the digest of all public inputs of one run.

    Formal guarantee: every returned release is on the keeper's disk, and charged if the keeper is a ledger.
    """

    keeper: Ledger | Checkpoint
    charge: Charge
    question: str

    def round(self, number: int, after: Tensor, make: Callable[[], Tensor]) -> Tensor:
        """Return the stored release of a round, or make and store it; `after` is the table or model before it."""
        request = _digest([self.question, str(number)], [after])
        content = self.keeper.release(number, request, self.charge, lambda: _packed({"release": make()}))
        return _unpacked(content)["release"].to(after)

    def walks(
        self,
        releases: int,
        utility: PublicSet,
        make: Callable[[], tuple[Tensor, dict[str, Estimate]]],
        kinds: dict[str, Floats],
    ) -> tuple[Tensor, dict[str, Estimate]]:
        """Return the table and the values of a schedule that walks while it releases, as one ledger entry.

        Nothing leaves the process before the entry is on disk. `kinds` are the semivalues with their position weights;
        they are part of the request, as the stored entry holds values.
        """
        if kinds and not utility.metric.by_name:
            raise DpvalueError("metric must not be a callable when values are kept on disk: name it, or use 'replay'")

        def packed() -> bytes:
            rows, estimates = make()
            tensors = {"rows": rows}
            for place, name in enumerate(kinds):
                for field in FIELDS:
                    tensors[f"{field}.{place}"] = torch.from_numpy(getattr(estimates[name], field))
            return _packed(tensors)

        weights = [torch.from_numpy(positions) for positions in kinds.values()]
        valuation = [utility.metric.name, str(utility.l2), *kinds] if kinds else []
        request = _digest([self.question, "walks", *valuation], weights)
        tensors = _unpacked(self.keeper.release(0, request, self.charge.times(releases), packed))
        estimates = {
            name: Estimate(**{field: tensors[f"{field}.{place}"].numpy() for field in FIELDS})
            for place, name in enumerate(kinds)
        }
        return tensors["rows"], estimates


def make_charging(
    keeper: Ledger | Checkpoint,
    choice: Choice,
    privacy: Privacy,
    contributions: Contributions,
    encoding: Encoding,
    public: PublicSet,
    other_facts: dict[str, object],
) -> Charging:
    """Return the charging of a run; `other_facts` holds its other public inputs: names, permutations, seed."""
    mechanism = contributions.mechanism
    charge = charge_of(mechanism, contributions.units, privacy)
    facts = {
        **other_facts,
        "model": choice.unit_numbers.digest(),
        "task": encoding.task,
        "classes": [str(label) for label in encoding.classes],
        "units": contributions.units.tolist(),
        "schedule": asdict(choice.schedule),
        "mechanism": asdict(mechanism),
        "learning_rate": choice.learning_rate,
    }
    tensors = [choice.initial, choice.points, choice.shares, public.x, public.y]
    if choice.basis is not None:
        tensors += [choice.basis.origin, choice.basis.vectors]
    return Charging(keeper, charge, _digest([json.dumps(facts, sort_keys=True)], tensors))


def _digest(texts: list[str], tensors: list[Tensor]) -> str:
    hasher = hashlib.sha256(json.dumps(texts).encode())
    for tensor in tensors:
        hasher.update(f"{tensor.dtype} {tuple(tensor.shape)}".encode())
        hasher.update(np.ascontiguousarray(tensor.cpu().numpy()).tobytes())
    return hasher.hexdigest()


def _packed(tensors: dict[str, Tensor]) -> bytes:
    from safetensors.torch import save

    packed: bytes = save({name: tensor.cpu().contiguous() for name, tensor in tensors.items()})
    return packed


def _unpacked(packed: bytes) -> dict[str, Tensor]:
    from safetensors.torch import load

    tensors: dict[str, Tensor] = load(packed)
    return tensors
