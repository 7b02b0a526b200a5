"""What one shard does with rows: lambdas, state, feedback, and combining what was published."""
