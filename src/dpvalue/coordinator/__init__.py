"""The coordinator of a study with party agents. It receives releases only, and no private row."""
