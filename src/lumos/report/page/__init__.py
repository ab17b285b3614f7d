"""Results as one HTML file, and what the local explorer shows."""
