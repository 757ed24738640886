"""THORN: forwarding state from FRR kept equal to tc rules that a NIC can offload (thesis chapter 3)."""
