"""SQL that a catalog runs over documents, for lambdas of any language: parameters, statements, shuffles.

Shuffles belong to the runtime, and computed shuffles are written in SQL in every derivation. The SQLite connector
builds its lambdas from the same parts.
"""
