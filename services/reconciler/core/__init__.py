"""Pure: what the kernel holds, what it should hold, and the order of writes in between. No I/O, no clock, no await."""
