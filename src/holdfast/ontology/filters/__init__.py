"""The query language: predicates, orderings and aggregates over the fields of a type. Pure; knows no engine."""
