"""What a catalog says of a derivation in TypeScript: its schema, and how its files are loaded."""
