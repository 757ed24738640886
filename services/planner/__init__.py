"""The planner: divides training jobs over unequal devices: who computes how much, and holds which state."""
