"""What Slurm says, what to do next, and what has happened to workers. Pure."""
