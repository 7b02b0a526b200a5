"""Functions, operators, casts and aggregates with PostgreSQL's semantics, as SQL of SQLite."""
