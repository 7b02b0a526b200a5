"""Compute: relations as functions of other relations, which are evaluated once or incrementally maintained."""
