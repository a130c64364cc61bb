"""One machine: its device and memory, the worth of many models at once, walks over a fixed table."""

from dpvalue.engine.engines import Engine, Local

__all__ = ["Engine", "Local"]
