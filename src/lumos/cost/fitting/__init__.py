"""The coefficients of the cost models, fitted to measured times."""
