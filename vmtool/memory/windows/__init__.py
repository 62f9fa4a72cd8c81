"""The process's own address space on Windows."""
