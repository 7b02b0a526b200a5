"""From the algebra to statements of SQLite: a query as a whole, or what to do with updates of its inputs."""
