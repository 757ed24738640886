"""`turnbuckle up` and the demo."""
