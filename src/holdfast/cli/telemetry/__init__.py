"""The commands around telemetry: agents, collectors, tokens, metrics, logs."""
