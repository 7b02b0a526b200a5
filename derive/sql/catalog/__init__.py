"""The catalog of SQL: names and items, DDL transactions, and edits of `flow.yaml`."""
