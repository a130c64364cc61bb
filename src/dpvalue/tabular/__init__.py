"""Files of rows: reading them, and turning columns into numbers by what the public file shows."""
