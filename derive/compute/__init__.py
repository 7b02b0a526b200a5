"""Compute: relations as functions of other relations, evaluated once or incrementally maintained at every time."""
