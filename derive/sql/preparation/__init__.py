"""Statements before they run: plans, parameters, columns of results, and caches of plans."""
