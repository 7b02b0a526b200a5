"""The PostgreSQL protocol: messages, authentication, portals; what statements mean is a session's."""
