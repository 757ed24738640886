"""Limit updates: which are carried out, when, and what is done where somebody else writes."""
