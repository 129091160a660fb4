"""The embedded default: objects as plain files in a folder."""

from holdfast.objects.local.store import LocalStore

__all__ = ["LocalStore"]
