"""The walks: releases in rounds or interleaved with the walk, and walks over a fixed table."""

from dpvalue.engine.local import Local

__all__ = ["Local"]
