"""Another process: its counters, its reservations, what limits it, and how it changes.

Nothing here attaches to the process, stops it or writes to it.
"""
