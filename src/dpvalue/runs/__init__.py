"""Local runs: choose, ask, answer, combine, value, write, all in one process."""
