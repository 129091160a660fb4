"""Queries: from what users write to SQL over the tables of one pinned head, and back to objects."""
