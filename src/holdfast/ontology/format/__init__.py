"""The objects of an ontology as documents: keys, head, manifests, indexes, statistics, redactions."""
