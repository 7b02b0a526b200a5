"""Times of reads and writes: the timeline, transactions, group commit and read capabilities."""
