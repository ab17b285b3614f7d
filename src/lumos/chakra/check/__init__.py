"""Whether a set of files runs on the simulators that read the format."""
