"""What `vmtool doctor` rates: rules over the facts of a machine, one file a subject."""
