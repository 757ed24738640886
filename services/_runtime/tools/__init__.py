"""Command-line tools of a service that `turnbuckle` starts."""
