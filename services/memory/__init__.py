"""The memory service: hosts offer free memory as network block devices, others swap to it."""
