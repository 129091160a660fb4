"""The type of ``readings``, for a write whose committing process is killed between its data files and the head.

Every process of Spark that plans, does or commits a write of this class imports this module. While the file ``mark()``
is there, the process that is about to write the head removes it and kills itself, so that the next attempt goes
through.
"""

import os
import signal
import tempfile
from pathlib import Path
from typing import Any

from holdfast.objects.client import Client
from holdfast.ontology.format import layout
from tests.spark.readings import Reading


def mark() -> Path:
    return Path(tempfile.gettempdir(), "die-before-head")


_put = Client.put


async def put_or_die(self: Client, key: str, *args: Any, **rest: Any) -> Any:
    if key == layout.HEAD and mark().exists():
        mark().unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    return await _put(self, key, *args, **rest)


if mark().exists():
    # The store is open by the time that this module is imported, so its class is changed.
    setattr(Client, "put", put_or_die)  # noqa: B010  # mypy refuses an assignment to a method

__all__ = ["Reading"]
