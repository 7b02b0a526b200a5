"""The typed algebra between SQL and dataflows: names are resolved, types are checked, casts are explicit."""
