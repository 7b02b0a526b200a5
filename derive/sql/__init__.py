"""SQL over collections: statements become commands to Storage and Compute, each at one exact time."""
