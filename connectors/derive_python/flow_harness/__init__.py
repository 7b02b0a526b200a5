"""The program that runs a derivation's module in a Python process of its own.

The process may have another interpreter than `flowctl`, so these modules import only the standard library and pydantic.
"""
