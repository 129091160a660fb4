"""Parquet files by byte ranges: footers read and written, row groups copied, columns placed."""
