"""The catalog of SQL: names and items, drafts of DDL transactions, and edits of `flow.yaml`."""
