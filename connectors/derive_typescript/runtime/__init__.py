"""Deno and the code that runs in it: projects of modules, processes, and sessions."""
