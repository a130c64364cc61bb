"""From releases to values: runs, tables, semivalues, results, and what they are used for."""
