"""The outside world behind `services.agent.ports`."""
