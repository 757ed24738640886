"""Decisions of the scheduler: values in, values and reasons out. Pure."""
