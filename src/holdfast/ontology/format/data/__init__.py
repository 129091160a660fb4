"""Rows: objects as rows, rows as Arrow tables, and tables as the data files of commits and snapshots."""
