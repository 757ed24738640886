"""The aggregator: sums the gradients of replicated training jobs, and updates their parameters."""
