"""The message bus: NATS with JetStream."""
