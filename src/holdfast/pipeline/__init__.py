"""The pipeline: everything that is derived from accepted batches, computed by Spark and published through the store.

Importing this room needs neither PySpark nor Java; whoever starts Spark does (``session``). ``design/0050-pipeline.md``
has the plan.
"""
