"""DuckDB: one sandboxed database per session, and the objects of a store as files that it scans."""
