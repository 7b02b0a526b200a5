"""Time-varying collections made durable: the metadata database, segments, frontiers and capabilities.

Nothing above this layer touches a segment file or the metadata database. What a data folder is to each kind of user is
in `roles.py`, and `store.py` plays all of these roles.
"""
