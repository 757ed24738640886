"""Arrays over containers and over applications: sums, shares, reasons, and states by slot."""
