"""Reading an ontology, beside DuckDB on ideal files and beside table formats."""
