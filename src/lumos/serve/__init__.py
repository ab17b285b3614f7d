"""The explorer: a page and an HTTP API on this machine alone."""
