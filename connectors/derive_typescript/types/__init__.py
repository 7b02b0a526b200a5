"""Types for the authors of modules, from the schemas of their sources and output; nothing here runs modules."""
