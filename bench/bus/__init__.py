"""How fast the bus is, beside the bare requests under it and a queue in SQLite."""
