"""Short measured trials of one thing each: a survey, a reservation, a growth."""
