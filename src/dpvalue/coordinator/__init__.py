"""The coordinator of a study whose parties are at home. It meets no private row."""
