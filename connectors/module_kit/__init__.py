"""The parts that all languages share whose modules run in a process: frames, processes, sessions, and state."""
