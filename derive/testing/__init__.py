"""Catalog tests: `tests:` stanzas on the in-process executor, in virtual time."""
