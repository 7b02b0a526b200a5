"""SQL that a catalog runs over documents: parameters, statements and computed shuffles.

The SQLite connector builds lambdas from these parts. Computed shuffles are SQL in every derivation, for lambdas in any
language.
"""
