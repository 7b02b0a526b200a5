"""Collections and tables as relations: their columns, and their rows as documents and as Arrow data."""
