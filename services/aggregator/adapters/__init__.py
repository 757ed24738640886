"""The aggregator's side of the network."""
