"""The agent: one per host. Samples containers, applies limit updates, restores limits when it stops."""
