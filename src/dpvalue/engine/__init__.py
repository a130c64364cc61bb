"""One machine: its device and memory, the worth of many models at once, walks over a fixed table."""

from dpvalue.engine.base import Engine
from dpvalue.engine.local import Local

__all__ = ["Engine", "Local"]
