"""Leases: which replica owns an application."""
