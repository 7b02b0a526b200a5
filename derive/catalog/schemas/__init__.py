"""The schemas of collections: their subschemas, their shapes, and implausible constructs in them."""
