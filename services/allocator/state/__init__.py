"""What is known of nodes, applications and containers, and what messages of agents change of it."""
