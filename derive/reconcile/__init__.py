"""Reconciliation: what is there is brought in line with what is wanted, and only what differs is touched."""
