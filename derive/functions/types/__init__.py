"""Types of SQL: how values are stored, ordered, read and written."""
