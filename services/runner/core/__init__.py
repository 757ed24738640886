"""Decisions of the runner: values in, values and reasons out."""
