"""Reconciliation: bring the present state in line with the desired state, and touch only the differences."""
