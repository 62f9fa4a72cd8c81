"""What inference engines would allocate and log for the same model and memory."""
