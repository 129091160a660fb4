"""What is done to a store besides writing rows: indexes, compaction, migration, reverts, erasure."""
