"""Frames against Parquet and Arrow IPC, both with zstd: bytes per sample, samples per second of one core."""
