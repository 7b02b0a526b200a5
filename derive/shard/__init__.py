"""Shards: run lambdas over rows, keep state, feed documents back, and combine published documents."""
