"""Models, rankings and their evaluation, pure."""
