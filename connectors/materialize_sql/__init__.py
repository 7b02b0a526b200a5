"""Materialization into tables: the parts that all SQL databases share.

A connector consists of a `Dialect`, with the names and types of its database, and an `Endpoint`, which moves rows.

- `kind`, `names`, `column`, `binding`: the columns of a binding, and their names.
- `values`: values of columns, exact or refused.
- `migration`, `tables`, `application`: the changes from existing tables to the needed tables, and their execution.
- `constraints`: fields that can be materialized, and reasons against others.
- `fence`: the right to commit, and the checkpoint to continue from.
- `refill`: a table beside the rows for a binding that starts over, and the replacement of the rows.
- `session`: one stream of transactions.
"""
