"""The contract between the services: subjects, messages, codec, streams. Pure: no I/O, nothing of ours imported."""
