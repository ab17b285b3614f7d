"""Numbers about a timeline, measured or simulated. Nothing here prints or draws."""
