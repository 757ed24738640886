"""`turnbuckle rules`, `turnbuckle paths`."""
