"""Collectors: HTTP servers that accept telemetry. The web framework is used in this package only.

``add_token`` and ``revoke_token`` edit a token file, as `holdfast tokens` does. Names are looked up when first used:
importing a part of this package does not load the rest.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from holdfast.server.tokens import add_token as add_token
    from holdfast.server.tokens import revoke_token as revoke_token

__all__ = ["add_token", "revoke_token"]


def __getattr__(name: str) -> Any:
    if name in __all__:
        return getattr(import_module("holdfast.server.tokens"), name)
    raise AttributeError(f"module 'holdfast.server' has no attribute {name!r}")
