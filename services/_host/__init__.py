"""What services need of the host: control groups, namespaces, netlink, locks, processes."""
