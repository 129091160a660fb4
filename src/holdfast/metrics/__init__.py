"""Series, windows and what is derived from samples: pure functions over columns, and questions about them.

Knows no frames and no Spark: ``platform/telemetry.py`` turns accepted batches into the points that are counted here,
``pipeline`` runs these functions in tasks and publishes what they give. ``design/0050-pipeline.md`` has the plan.
"""
