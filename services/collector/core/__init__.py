"""Decisions of the collector, pure."""
