"""What each command found: one module a command, frozen types that hold numbers, no sentences."""
