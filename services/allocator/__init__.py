"""The allocator: keeps the sum of limits of an application under its limit, and each just above what is used."""
