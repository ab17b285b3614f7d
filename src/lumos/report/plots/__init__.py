"""Figures as single HTML files."""
