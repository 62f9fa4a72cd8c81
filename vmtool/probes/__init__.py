"""Single trials: granularity, a reservation, growth, limits, guards."""
