"""The fast path: takes a dead next hop out of use ahead of FRR, in a routing table of its own."""
