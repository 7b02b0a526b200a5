"""Reductions: two documents of one key become one, by the annotations of their schema (law L6)."""
