"""What is known of nodes, applications and containers."""
