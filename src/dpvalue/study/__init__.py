"""The coordinator's side of a study: it makes a job, checks what comes back, and values it. It meets no private row."""
