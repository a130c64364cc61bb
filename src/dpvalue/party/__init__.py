"""The party's side: private rows, what they contribute, noise, and the agent that decides what is answered."""
