"""How fast the engine is beside the literal Algorithm 1: ratios measured side by side in one run."""

from dpvalue.experiments.bench.cases import CPU_CASES, GPU_CASES, run_cases

__all__ = ["CPU_CASES", "GPU_CASES", "run_cases"]
