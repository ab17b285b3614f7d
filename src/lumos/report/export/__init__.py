"""Timelines as files that other tools open."""
