"""Deno, and what runs in it: the project of a module, its processes, and the sessions that they serve."""
