"""Netlink: sockets, messages, and the objects that they carry."""
