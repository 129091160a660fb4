"""Agents: measure a host, keep what was measured in a durable queue, and bring it to collectors."""
