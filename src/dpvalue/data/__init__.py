"""Whose rows are valued, in which files and columns, and the public set that judges them."""
