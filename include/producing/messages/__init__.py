"""Generators of messages, a module per pipeline: `message` returns a valid one, `bad_messages` invalid ones."""
