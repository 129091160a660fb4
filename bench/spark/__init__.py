"""Spark in and out, beside delta-rs and plain Parquet."""
