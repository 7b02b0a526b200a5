"""The parser of SQL: from text to statements with positions."""
