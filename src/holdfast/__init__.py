"""Holdfast: a data platform that needs nothing but a bucket.

Importing the package starts no thread, opens no socket and loads no backend: names are looked up when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast import bus as bus
    from holdfast import errors as errors
    from holdfast import objects as objects
    from holdfast import runs as runs
    from holdfast.base.portal import Portal as Portal
    from holdfast.platform.open import Holdfast as Holdfast
    from holdfast.platform.open import connect as connect
    from holdfast.platform.open import open_platform as open  # noqa: A004  # holdfast.open(uri) is how it reads

_HOMES = {
    "Holdfast": ("holdfast.platform.open", "Holdfast"),
    "Portal": ("holdfast.base.portal", "Portal"),
    "connect": ("holdfast.platform.open", "connect"),
    "open": ("holdfast.platform.open", "open_platform"),
}
_ROOMS = {"bus", "errors", "objects", "runs"}

__all__ = ["Holdfast", "Portal", "bus", "connect", "errors", "objects", "open", "runs"]


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        module, attribute = _HOMES[name]
        return getattr(import_module(module), attribute)
    if name in _ROOMS:
        return import_module(f"holdfast.{name}")
    raise AttributeError(f"module 'holdfast' has no attribute {name!r}")
