"""What retraining on a coalition's data would give, from one private message a party: all of the public side."""
