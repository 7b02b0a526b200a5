"""Time-varying collections made durable: the metadata database, segments, frontiers and capabilities.

Nothing above this layer touches a segment file or the metadata database.
"""
