"""Connectors: languages of lambdas and kinds of endpoints, found through entry points."""
