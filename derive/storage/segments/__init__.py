"""Segments: the files that hold documents."""
