"""The server's side: plan, ask, combine, value. It sees releases and public things, and no private row."""
