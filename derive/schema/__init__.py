"""JSON Schema: references, validation, inference, projections."""
