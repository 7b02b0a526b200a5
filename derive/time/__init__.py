"""Time: the intervals that tasks read next.

Pure functions over frontiers and descriptions of segments; no function opens a file.
"""
