"""Memory limits: near the limit, at it, and the reserve."""
