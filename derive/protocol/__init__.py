"""What the layers agree on: validated specs of a catalog, and the protocols connectors implement."""
