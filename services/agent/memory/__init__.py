"""Memory limits: near the limit, at it, the reserve, and the watchdog."""
