"""The chain of manifests: walking it, and what it says of files, rows, schemas, tags and moments."""
