"""What command lines share: errors with exit codes, output, files with line numbers, the connection to the bus."""
