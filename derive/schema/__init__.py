"""JSON Schema: references, validation, inference and projections."""
