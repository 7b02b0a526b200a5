"""Materializations: what a worker does for a shard of one, over the stream of transactions with its connector."""
