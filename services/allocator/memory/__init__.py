"""Memory limits and reserves."""
