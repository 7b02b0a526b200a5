"""Arrangements, and dataflows that update them from their inputs, one tick after the other."""
