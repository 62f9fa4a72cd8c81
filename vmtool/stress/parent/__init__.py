"""The parent process of a stress run, which survives its workers."""
