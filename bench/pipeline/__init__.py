"""Rollups from frames in a bucket, beside plain Spark and DuckDB on ideal Parquet."""
