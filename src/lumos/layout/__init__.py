"""Plans, blocks and the graphs that they assemble into."""
