"""Arrangements, and dataflows that keep them in step with their inputs, one tick after the other."""
