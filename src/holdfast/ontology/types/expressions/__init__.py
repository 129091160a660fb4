"""What conditions, orders and aggregates are made of: a field of a class is a term of the query language. Pure."""
