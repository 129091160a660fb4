"""Disk cache for immutable objects, shared by the processes of a machine."""

from holdfast.objects.cache.disk import DiskCache
from holdfast.objects.cache.folder import CacheStats

__all__ = ["CacheStats", "DiskCache"]
