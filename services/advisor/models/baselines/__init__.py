"""What every learned model has to beat."""
