"""Decisions of the allocator, pure and vectorised over containers."""
