"""From the text of SQL to statements: what was written, with its positions."""
