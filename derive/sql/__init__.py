"""SQL over collections: statements become commands to storage and compute, each at one exact time."""
