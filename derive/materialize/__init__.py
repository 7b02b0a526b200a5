"""Materializations: the work of a worker for a shard, over the transaction stream with its connector."""
