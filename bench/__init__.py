"""Side-by-side benchmarks. Each package here runs as ``python -m bench.<name>`` and keeps its results as data."""
