"""The audit: how long it takes, what it asks of the store, and how its memory grows with the number of keys."""
