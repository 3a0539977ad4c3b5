"""The roles: each binds a piece of the learning wing to the runtime of the system wing."""
