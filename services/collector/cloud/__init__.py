"""Training jobs in the cloud: submitted, watched, paid for."""
