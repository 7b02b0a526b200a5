"""The engine: plans a task's transactions, runs them on Spark or in this process, and commits them."""
