"""Rollups and indexes of samples: pure functions over columns. ``extract`` turns accepted batches into points, and no
other module reads frames. None uses Spark: ``pipeline`` runs these functions in tasks and publishes their results.
``design/0050-pipeline.md`` has the plan.
"""
