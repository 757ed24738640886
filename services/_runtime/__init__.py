"""The shell that all services share: lifecycle, bus, settings, logs, health. It knows none of them."""
