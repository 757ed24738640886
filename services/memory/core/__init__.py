"""Decisions of remote memory, and its protocol: values in, values and reasons out."""
