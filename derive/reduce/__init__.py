"""Reductions: two documents of one key into one, by the annotations of their schema (law L6)."""
