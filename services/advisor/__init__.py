"""The advisor: what a training job will take and cost on each configuration, and which to choose."""
