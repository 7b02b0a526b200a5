"""Regular expressions of PostgreSQL, matched in time that is linear in the text."""
