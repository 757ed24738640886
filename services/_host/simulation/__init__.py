"""Load profiles, and a host whose containers are arithmetic."""
