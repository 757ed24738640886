"""The scheduler: which training job runs now, where, and why."""
