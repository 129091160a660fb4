"""Upkeep of an ontology: what it costs, and what queries gain."""
