"""The kernel and the network: NBD, locked memory, device mapper, swap."""
