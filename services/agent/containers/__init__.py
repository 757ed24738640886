"""The containers of one node: which there are, their limits, what is remembered of their samples."""
