"""Every choice of a run, made from public things alone, and what a budget can buy."""
