"""Relations as SELECT statements of SQLite, and connections that know SQL's functions."""
