"""The runner: starts, signals and watches the workers of training jobs on one host."""
