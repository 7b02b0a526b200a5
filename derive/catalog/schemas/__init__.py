"""The schemas of collections: their subschemas, what they allow, and what in them cannot be meant."""
