"""Control groups of version 1 and 2."""
