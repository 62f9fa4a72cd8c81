"""Comparing two sets of runs: what changed, how certain that is, and assertions about it."""
