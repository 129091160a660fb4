"""DuckDB: connections that can reach nothing but what they are given, and how objects of a store become scans."""
