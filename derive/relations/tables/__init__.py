"""Tables and materialized views: rows as documents, contents at a time, and changes."""
