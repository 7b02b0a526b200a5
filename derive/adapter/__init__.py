"""The adapter: from SQL statements to commands for Storage and Compute, each at one exact time."""
