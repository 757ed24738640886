"""The watchdog: a process of its own that controls memory while no agent runs."""
