"""Diagnose and benchmark virtually contiguous, physically scattered memory."""

__version__ = "0.1.0"
