"""The party's own side: its policy, and the agent that answers from its file. Nothing here trusts a coordinator."""
