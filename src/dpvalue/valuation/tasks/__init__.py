"""What values are used for: removing and adding parties, and how stable a ranking is."""
