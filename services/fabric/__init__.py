"""A host's part of the fabric: devices, addresses, FRR. Planned, built, checked and undone from one host.yaml."""
