"""Writing to the ontology with Spark: any frame or stream as commits. ``design/0054-spark-writes.md`` has the plan."""
