"""The thesis' networks."""
