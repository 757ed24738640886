"""A training's progress, from the file that it writes for the profiler, or from what it prints."""
