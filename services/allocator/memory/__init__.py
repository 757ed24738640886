"""Memory limits and reserves: pipeline, policy, plan, requests."""
