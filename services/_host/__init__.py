"""What services need of the host, its kernel and engines: control groups, namespaces, netlink, locks, Docker, CRI."""
