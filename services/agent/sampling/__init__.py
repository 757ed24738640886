"""Counters of all containers, each period: usage and throttling."""
