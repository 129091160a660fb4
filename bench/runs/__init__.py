"""Runs against the floor under them (bare writes of the same bytes) and against DBOS on SQLite."""
