"""Data files that a session has read: which of them a query needs, and where DuckDB scans them."""
