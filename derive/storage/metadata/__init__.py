"""The metadata database: the single place where a commit happens."""
