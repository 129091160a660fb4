"""Questions about metrics and logs, answered from rollups, raw batches and live state."""
