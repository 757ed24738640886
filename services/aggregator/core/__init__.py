"""Decisions of the aggregator: values in, values and reasons out."""
