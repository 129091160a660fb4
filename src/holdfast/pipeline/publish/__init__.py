"""What makes results visible: generations of hours and days, and the end of an hour."""

from holdfast.pipeline.publish.generations import Draft, Published, publish, verify

__all__ = ["Draft", "Published", "publish", "verify"]
