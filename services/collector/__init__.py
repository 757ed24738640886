"""The collector: what training jobs use, what they take, and what they cost."""
