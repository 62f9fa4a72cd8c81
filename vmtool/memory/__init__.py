"""The backing library: reserve addresses, commit memory behind them, never move the base."""
