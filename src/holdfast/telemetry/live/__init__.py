"""Live state: the newest records of each source, in the memory of a collector or of a query collector."""
