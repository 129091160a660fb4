"""Ingest: telemetry accepted by any of several collectors, each batch exactly once."""
