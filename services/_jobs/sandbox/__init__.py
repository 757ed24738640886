"""Sandboxes: a control group with a network namespace each, in place of a training job's machines."""
