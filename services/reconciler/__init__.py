"""The reconciler: keeps tc rules that a NIC can offload equal to FRR's forwarding state (THORN)."""
