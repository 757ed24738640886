"""Where the collector meets the kernel and the clouds."""
