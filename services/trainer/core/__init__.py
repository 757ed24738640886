"""What the trainer derives from its ranks' reports. Pure."""
