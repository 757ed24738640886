"""Generators of files that are committed; run from the repository root, as `make docs` and `make snapshots` do."""
