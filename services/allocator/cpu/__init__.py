"""CPU limits: pipeline, policies, dead band."""
