"""The agent: one per host. Samples containers, carries out limit orders, restores limits when it stops."""
