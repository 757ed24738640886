"""The Slurm engine: runs the workers of training jobs as jobs of a Slurm cluster."""
