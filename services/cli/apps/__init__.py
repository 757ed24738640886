"""Applications: apply, delete, apps, top, explain, exec."""
