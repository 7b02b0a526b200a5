"""Scalar functions, operators and casts, one module for each type or concept."""
