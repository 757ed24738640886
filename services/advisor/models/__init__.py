"""Models of time and cost."""
