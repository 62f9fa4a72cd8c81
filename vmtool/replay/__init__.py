"""Replaying a request trace on KV memory: simulated exactly, or on real memory."""
