"""Local runs: sampled, and their features."""
