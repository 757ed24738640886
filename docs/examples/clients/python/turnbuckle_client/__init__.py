"""Subjects, types and a decoder of Turnbuckle's messages, without any of its code: needs msgpack only."""
