"""Records from and to files."""
