"""The HTTP edge: REST, its errors, its manners, and the server that carries it."""
