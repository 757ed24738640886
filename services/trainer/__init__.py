"""The trainer: runs a plan of a training job over unequal devices."""
