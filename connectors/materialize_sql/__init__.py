"""Materializing into tables: what is the same for every SQL database.

A connector for one is a `Dialect`, which says how things are called there, and an `Endpoint`, which moves rows.

- `kind`, `names`, `column`, `table`: which columns a binding has, and what they are called.
- `values`: what goes into them, exactly or not at all.
- `existing`, `migration`: how a table that is there becomes the table that is needed.
- `constraints`: which fields can be materialized, and why not.
- `fence`: who may commit, and from where to go on.
- `refill`: how a binding that starts over is stored beside its rows, and replaces them.
- `session`: one stream of transactions.
"""
