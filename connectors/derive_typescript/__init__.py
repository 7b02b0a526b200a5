"""The TypeScript derive connector: lambdas are methods of a class, run by Deno."""

from connectors.derive_typescript.connector import TypeScriptConnector

__all__ = ["TypeScriptConnector"]
