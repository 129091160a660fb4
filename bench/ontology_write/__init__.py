"""Commits of one-row upserts, bulk loads and contended writers: ours against delta-rs and pyiceberg."""
