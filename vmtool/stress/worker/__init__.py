"""The side of a stress run that may be killed: the cycles themselves."""
