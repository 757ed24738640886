"""The `turnbuckle` command: a client like any other."""
