"""What inference engines would log for the same memory."""
