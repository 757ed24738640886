"""Which replica owns an application."""
