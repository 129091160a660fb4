"""One worker of a namespace: what it reads, claims, runs and remembers."""
