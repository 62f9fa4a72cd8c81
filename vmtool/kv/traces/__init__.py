"""Request traces: files of several formats, read line by line, and synthetic ones."""
