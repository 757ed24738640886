"""The trainer-worker: one rank of a training job that follows a plan, started by torchrun."""
