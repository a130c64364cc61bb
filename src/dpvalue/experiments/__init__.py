"""The paper's experiments and the benchmarks of dpvalue: no part of the library."""
