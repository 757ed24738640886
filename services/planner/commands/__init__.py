"""`turnbuckle plan`: what it reads, decides by `core`, and prints."""
