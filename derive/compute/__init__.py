"""Compute: relations as functions of others, worked out once or maintained at every time."""
