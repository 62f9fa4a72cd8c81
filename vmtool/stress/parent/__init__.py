"""The side of a stress run that survives a worker."""
