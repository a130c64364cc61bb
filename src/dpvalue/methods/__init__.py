"""The ways of valuing: what is asked of parties, how their answers are read, and which game values are of."""
