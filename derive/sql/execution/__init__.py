"""Execution of statements: one module for each kind of statement, and the state of a session."""
