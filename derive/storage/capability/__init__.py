"""Capabilities: durable rights to read a collection, to write a collection, or to run a task."""
