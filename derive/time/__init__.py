"""Time: what to read and how far.

Pure functions over frontiers and descriptors of segments; nothing here opens a file.
"""
