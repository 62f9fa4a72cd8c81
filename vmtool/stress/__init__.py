"""Commit and release cycles on real memory: plans, workloads, verification and workers."""
