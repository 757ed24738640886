"""What an application may still hand out."""
