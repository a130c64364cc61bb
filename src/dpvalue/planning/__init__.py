"""The choices of a run, made from public inputs only, and the expected quality of its values."""
