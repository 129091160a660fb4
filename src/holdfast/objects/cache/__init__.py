"""Read-through disk cache for immutable objects, shared by the processes of a machine."""

from holdfast.objects.cache.cached import Cached

__all__ = ["Cached"]
