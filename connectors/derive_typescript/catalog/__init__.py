"""The catalog's part of a derivation in TypeScript: its schema, and the loading of its files."""
