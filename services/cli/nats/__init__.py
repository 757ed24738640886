"""`turnbuckle nats`, `turnbuckle tap`."""
