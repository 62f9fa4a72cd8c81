"""The process's own address space on Linux and macOS."""
