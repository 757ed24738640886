"""Decisions of the agent, pure."""
