"""Bytes, versions and conditional writes, on which everything else is built.

async with objects.open("file:./data") as store:
    match await store.put("greeting", b"hello", CREATE):
        case Written(version): ...
        case Lost(current): ...
"""

from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Scoped
from holdfast.objects.lease import Grant, Held, Lease
from holdfast.objects.open import open_store as open  # noqa: A004  # objects.open(uri) is how it reads
from holdfast.objects.register import UNCHANGED, Edited, Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    Entry,
    IfMatch,
    Lost,
    Meta,
    NotModified,
    Object,
    Page,
    Store,
    Version,
    Written,
)
from holdfast.objects.uri import StoreSpec

__all__ = [
    "ADDRESSED",
    "CREATE",
    "OVERWRITE",
    "UNCHANGED",
    "Client",
    "Edited",
    "Entry",
    "Grant",
    "Held",
    "IfMatch",
    "Lease",
    "Lost",
    "Meta",
    "NotModified",
    "Object",
    "Page",
    "Plain",
    "Register",
    "RetryPolicy",
    "Scoped",
    "Store",
    "StoreSpec",
    "Usage",
    "Version",
    "Written",
    "open",
]
