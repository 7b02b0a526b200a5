"""Metrics, health and traces of the processes that run for long: what a monitoring system sees of them."""
