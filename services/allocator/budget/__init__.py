"""What a step may order: what is committed and free, who may be raised, fair shares, first limits."""
