"""The learning rate along a line: how far all parties together move a model that has one number."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from dpvalue.data.metrics import LOSS
from dpvalue.data.rows import PublicRows
from dpvalue.data.utility import PublicSet
from dpvalue.engine.evaluator import Evaluator
from dpvalue.errors import DpvalueError
from dpvalue.models import Model
from dpvalue.planning.situation import Situation
from dpvalue.privacy.mechanism import Mechanism
from dpvalue.releasing.contributions import Contributions
from dpvalue.releasing.projection import Basis

_DISTANCES = tuple(10 ** (exponent / 8) for exponent in range(-24, 25))  # a thousandth to a thousand
_MOST_ROWS = 256


def rate_on_line(
    at: Situation, model: Model, initial: Tensor, basis: Basis, mechanism: Mechanism, mixed: float
) -> float:
    """Return the rate at which all parties together move the model to where most of what the line offers is reached.

    That is the nearest point with nine tenths of the best fall of the public loss. It is reached if the parties are
    like public rows and their noise adds up to three standard deviations: a walk past the best point would turn the
    signs of late marginals, and far out, where the loss is flat, marginals would vanish.
    """
    public, engine = at.public, at.settings.engine
    unit = _unit_of_length(model, initial, basis, public)
    lengths = torch.tensor([unit * distance for distance in _DISTANCES], dtype=initial.dtype, device=initial.device)
    evaluate = Evaluator(replace(public, metric=LOSS, l2=0.0), model, engine)
    falls = (evaluate(-lengths[:, None]) - evaluate(initial[None])).nan_to_num(0.0, 0.0, 0.0)
    if not float(falls.max()) > 0:
        raise DpvalueError(
            "no step along the public direction lowers the public loss: scale the features (preprocess=)"
        )
    best = float(lengths[int((falls >= 0.9 * falls.max()).nonzero()[0, 0])])
    evenly = slice(None, None, -(-len(public.x) // _MOST_ROWS))
    x, y = public.x[evenly].cpu().numpy(), public.y[evenly].cpu().numpy()
    count = len(x)
    rows = PublicRows.by_party(x, y, np.ones(count, dtype=np.int64), initial.dtype, initial.device)
    alone = Contributions(model, rows, replace(mechanism, unit="party"), engine)
    everyone = torch.arange(count, device=initial.device)
    step = float(mechanism.scale.read(alone.along(basis.points, basis.shares, everyone)).mean())
    std = mixed * mechanism.scale.gain * float(mechanism.noise_std(torch.from_numpy(at.units)).square().mean().sqrt())
    reach = at.n * max(step, 0.0) + 3 * std * at.n**0.5
    return best / reach if reach > 0 else 1.0


def _unit_of_length(model: Model, initial: Tensor, basis: Basis, public: PublicSet) -> float:
    """How far is far on this line: to the end of a path, or until public outputs have changed by about 1."""
    if len(basis.points) > 1:
        return float(basis.points.abs().max())
    step = 1e-3
    outputs = model.outputs(torch.stack([initial, initial - step]), model.inputs(public.x))
    change = float((outputs[1] - outputs[0]).square().mean().sqrt()) / step
    return 1 / change if np.isfinite(change) and change > 0 else 1.0
