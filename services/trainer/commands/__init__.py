"""`turnbuckle train`: the ranks of a plan by torchrun, and what they report."""
