"""The contract between the services: subjects, messages, codec, streams. Pure: no I/O, no imports from services."""
