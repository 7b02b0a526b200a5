"""Materialization into tables: the parts that all SQL databases share.

A connector consists of a `Dialect`, with the names and types of its database, and an `Endpoint`, which moves rows.

- `column`: tables and columns, and their kinds.
- `values`: values of columns, exact or refused.
- `binding`: the columns of a binding, fields that can be materialized, and migrations of existing tables.
- `tables`: the changes from existing tables to the needed tables, and tables for bindings that start over.
- `endpoint`: the connection, the right to commit, and the checkpoint to continue from.
- `session`: one stream of transactions.
- `connector`: the kit's methods, and the execution of changes.
"""
