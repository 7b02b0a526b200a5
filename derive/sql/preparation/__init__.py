"""Preparation of statements: plans, parameters, result columns, and caches of plans."""
