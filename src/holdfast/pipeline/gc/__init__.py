"""Garbage collection and retention: what may be removed, on which proof, and the record of everything removed.

``pipeline.jobs.gc`` is the job; each module here knows one kind of garbage. ``design/0052-garbage-and-retention.md``
has the rules.
"""

from holdfast.pipeline.gc.options import KINDS, GcOptions

__all__ = ["KINDS", "GcOptions"]
