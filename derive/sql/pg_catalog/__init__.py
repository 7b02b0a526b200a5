"""What clients of PostgreSQL ask about schemas, tables and types."""
