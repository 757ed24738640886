"""The kernel's netlink sockets, FRR's sockets, files of this host."""
