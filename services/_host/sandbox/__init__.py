"""A control group with a network namespace: what stands in for a machine of a training job."""
