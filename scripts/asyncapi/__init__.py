"""docs/asyncapi.json and docs/asyncapi.html out of the registry of subjects and messages."""
