"""Accesses and calls that must fail: tried."""
