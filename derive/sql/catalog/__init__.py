"""The catalog of SQL: what names stand for, now, in a draft, and after an edit of `flow.yaml`."""
