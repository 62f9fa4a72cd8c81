"""Proofs of the granule: calls with other sizes and offsets, tried on the real system."""
