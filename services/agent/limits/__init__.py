"""Limit updates: which are applied, when, and how external modifications are handled."""
