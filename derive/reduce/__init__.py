"""Reductions: reduce documents of one key by the annotations of their schema (law L6)."""
