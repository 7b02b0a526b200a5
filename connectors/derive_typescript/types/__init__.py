"""Types for the authors of modules, from the schemas of what they read and publish; nothing here runs anything."""
