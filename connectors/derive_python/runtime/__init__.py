"""Projects of Python modules, and the processes and sessions that run them."""
