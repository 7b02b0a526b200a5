"""Durable time-varying collections: the metadata database, segments, frontiers and capabilities.

No layer above Storage opens a segment file or the metadata database. `roles.py` has one interface for each kind of
user, and `store.py` implements all of them.
"""
