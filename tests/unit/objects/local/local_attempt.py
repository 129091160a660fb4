"""One write to a local store, in a process whose disk is read-only, full or forbidden; what came of it, as JSON."""

import asyncio
import json
import resource
import sys
from pathlib import Path
from typing import Any

from holdfast.base.errors import HoldfastError
from holdfast.objects.local import LocalStore
from tests.unit.objects.local.local_kit import keys, staged


async def attempt(root: Path, size: int) -> dict[str, Any]:
    store = LocalStore(root)
    outcome: dict[str, Any] = {}
    try:
        await store.put("new/object", b"x" * size)
    except HoldfastError as error:
        outcome = {
            "kind": error.kind,
            "message": str(error),
            "remedy": error.remedy,
            "maybe_applied": getattr(error, "maybe_applied", False),
        }
    return outcome | {"keys": await keys(store), "staged": staged(root)}


if __name__ == "__main__":
    folder, body_bytes, file_limit = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    if file_limit:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit, file_limit))
    json.dump(asyncio.run(attempt(folder, body_bytes)), sys.stdout)
