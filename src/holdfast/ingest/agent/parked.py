"""Batches outside the order: a collector will not take them as they are, and nobody but an operator may drop them.

One file per batch, named by its numbers, with the reason beside the frame. They are offered again now and then: that is
how an operator's resolution reaches the agent, and how a batch that was too large for a limit goes through when the
limit was raised. Reading and dropping need no lock: a file is there, whole, or it is not.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.base.errors import Corrupt, NotFound
from holdfast.ingest.agent import entry as entries
from holdfast.ingest.agent.entry import Entry
from holdfast.ingest.agent.folder import Folder
from holdfast.ingest.frame import Identity, inspect

PARKED = ".parked"
_NAME = re.compile(r"(\d{20})-(\d{20})\.parked")


@dataclass(frozen=True, slots=True)
class Parked:
    identity: Identity
    frame: bytes
    reason: str
    """A word, as in the collector's answer."""
    detail: str
    collector: str
    parked_at_unix_ns: int

    @property
    def name(self) -> str:
        return parked_name(self.identity)

    @property
    def frame_sha256(self) -> str:
        return hashlib.sha256(self.frame).hexdigest()


def parked_name(identity: Identity) -> str:
    return f"{identity.seq_start:020d}-{identity.seq_end:020d}{PARKED}"


async def write_parked(folder: Folder, parked: Parked) -> int:
    """Durable when it returns; how many bytes it takes."""
    note = {
        "reason": parked.reason,
        "detail": parked.detail,
        "collector": parked.collector,
        "parked_at_unix_ns": parked.parked_at_unix_ns,
    }
    data = Entry(parked.frame, note).encode()
    await folder.replace(parked.name, data)
    return len(data)


async def parked_names(folder: Folder) -> list[str]:
    return [name for name in await folder.names() if _NAME.fullmatch(name)]


async def read_parked(folder: Folder, name: str) -> Parked | None:
    """None if it was dropped meanwhile."""
    data = await folder.read(name)
    if data is None:
        return None
    entry = entries.read(data)
    if entry is None:
        raise Corrupt(f"{name}: is no entry of a queue", remedy="keep the file, and drop it when nobody needs it")
    note = entry.note
    return Parked(
        inspect(entry.frame).identity,
        entry.frame,
        str(note.get("reason", "")),
        str(note.get("detail", "")),
        str(note.get("collector", "")),
        int(note.get("parked_at_unix_ns", 0)),
    )


async def all_parked(folder: Folder) -> AsyncIterator[Parked]:
    for name in await parked_names(folder):
        parked = await read_parked(folder, name)
        if parked is not None:
            yield parked


async def find_parked(folder: Folder, numbers: str) -> Parked:
    """By its numbers, as people write them: ``120-140``."""
    start, _, end = numbers.removesuffix(PARKED).partition("-")
    name = f"{start:0>20}-{end:0>20}{PARKED}"
    parked = await read_parked(folder, name) if _NAME.fullmatch(name) else None
    if parked is None:
        raise NotFound(f"no parked batch {numbers}", remedy="see `holdfast agent parked list`")
    return parked
