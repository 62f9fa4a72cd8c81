"""The worker process of a stress run, which may be killed: the cycles themselves."""
