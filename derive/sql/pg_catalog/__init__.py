"""PostgreSQL's catalogs: queries of clients about schemas, tables and types."""
