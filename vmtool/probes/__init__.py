"""One thing tried once: granularity, a reservation, growth, limits, guards."""
