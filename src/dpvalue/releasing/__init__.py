"""What a party contributes, clipped, and the schedules and rounds in which it leaves with noise."""
