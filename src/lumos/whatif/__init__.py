"""Changes of a measured job, and the answer to each."""
