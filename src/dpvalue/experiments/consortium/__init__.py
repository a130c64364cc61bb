"""Eight organisations, what their data is worth: private values beside what retraining on all coalitions says."""
