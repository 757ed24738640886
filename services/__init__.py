"""Turnbuckle's services: each sub-package is deployable on its own; none imports another."""
