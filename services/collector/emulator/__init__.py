"""The emulated cloud: instance types as limits on this machine, and real distributed training inside of them."""
