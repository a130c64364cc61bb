"""A computation recorded once as a CUDA graph, and replayed: its many small launches then cost one."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor


class Graph:
    """`work` of tensors of fixed shapes, as a CUDA graph. What a call returns holds until the next call.

    Tensors that `work` uses besides its arguments are read anew in each call, from where they were when recorded.
    """

    def __init__(self, work: Callable[..., tuple[Tensor, ...]], *like: Tensor) -> None:
        self._inputs = [tensor.clone() for tensor in like]
        with torch.cuda.device(like[0].device):
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # libraries set themselves up on the first calls, which a graph must not record
                    work(*self._inputs)
            torch.cuda.current_stream().wait_stream(side)
            self._graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(self._graph):
                self._output = work(*self._inputs)

    def __call__(self, *tensors: Tensor) -> tuple[Tensor, ...]:
        """Return work(*tensors)."""
        for static, tensor in zip(self._inputs, tensors, strict=True):
            static.copy_(tensor)
        self._graph.replay()
        return self._output
