"""Results as text for people, one verb a file."""
