"""Life of a service process: start, settings, health, clean stop."""
