"""CPU limits: policies and the dead band."""
