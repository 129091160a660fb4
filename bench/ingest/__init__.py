"""Collectors measured against bare PUTs, and beside Prometheus and VictoriaMetrics."""
