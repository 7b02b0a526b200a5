"""Connectors: the languages lambdas are written in, found through entry points."""
