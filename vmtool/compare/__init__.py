"""Two runs beside each other: what changed, how certain that is, and assertions about it."""
