"""Derivations in Python."""

from connectors.derive_python.connector import PythonConnector

__all__ = ["PythonConnector"]
