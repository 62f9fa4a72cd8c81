"""The rules of `vmtool doctor` about the facts of a machine, one file per subject."""
