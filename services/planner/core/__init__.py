"""Decisions of the planner: values in, values and reasons out. Pure."""
