"""From a game to values: semivalues, estimates, results, and what can be said of them under noise."""
