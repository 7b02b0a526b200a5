"""Materializations: a worker stores the rows of a shard through a stream of transactions with a connector."""
