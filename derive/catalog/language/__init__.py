"""The language of catalogs: YAML with positions, the JSON Schema of `flow.yaml`, and rules for names."""
