"""Which containers there are: Docker, pods, `turnbuckle exec`."""
