"""Load the files of a catalog, their imports and references, and the definitions in them."""
