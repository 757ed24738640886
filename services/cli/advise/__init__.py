"""`turnbuckle advise`, `jobs`, and the tools beside them."""
