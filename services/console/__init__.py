"""`turnbuckle console`: a web page that shows what the bus says, served on loopback."""
