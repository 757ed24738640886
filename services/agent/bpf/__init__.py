"""The kernel's own programs: loaded, and what they tell."""
