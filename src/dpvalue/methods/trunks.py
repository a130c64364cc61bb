"""The public trunk of a network: trained on public rows, for as long as rows that it did not see are the better for it.

What a party's records are described by is then the gradient of the network's last layer, on features that the trunk
makes of them.
"""

from __future__ import annotations

import numpy as np
import torch
from torch import Tensor

from dpvalue.data.utility import PublicSet
from dpvalue.errors import DpvalueError
from dpvalue.models import Headed, Network, find_head
from dpvalue.models.training import train
from dpvalue.streams import Purpose, stream

_STEPS = (16, 64, 256)
_FOLDS = 5


def make_head(model: Network, initial: Tensor, public: PublicSet, seed: int) -> Headed:
    """Return the head of a network on a trunk that is trained on public rows.

    For how long is what gives the least loss on a fifth of the rows that was left out; then all of them are trained on.

    Formal guarantee: reads public rows only.

    Args:
        model: the network; raises if it has no head (`models.find_head`).
        initial: where training starts (size,).
        public: the public rows.
        seed: of their order, and of which are left out.
    """
    head = find_head(model, public.x[0])
    x, y = model.inputs(public.x), model.targets(public.y)
    order = stream(seed, Purpose.REFIT, 1).permutation(len(x))
    left_out = torch.from_numpy(order % _FOLDS == 0).to(x.device)
    stages = train(model, initial, x[~left_out], y[~left_out], _STEPS, seed)
    losses = model.mean_loss(x[left_out], y[left_out])(torch.stack(stages)).cpu().numpy()
    steps = _STEPS[int(np.nan_to_num(losses, nan=np.inf).argmin())]
    trained = train(model, initial, x, y, [steps], seed)[0]
    if not bool(trained.isfinite().all()):
        raise DpvalueError("training the network on the public rows diverged: scale the features, or use game='steps'")
    return Headed.of(model, head, trained, public.x)
