"""The PostgreSQL protocol: messages, authentication and portals; a session executes the statements."""
