"""Loading: the files of a catalog, what they import and refer to, and the definitions in them."""
