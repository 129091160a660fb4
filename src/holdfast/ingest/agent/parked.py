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
from holdfast.ingest.frame import ANY_SIZE, FrameInvalid, Identity, inspect

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
    try:
        identity = None if entry is None else inspect(entry.frame, ANY_SIZE).identity
    except FrameInvalid:
        identity = None
    if entry is None or identity is None:
        raise Corrupt(
            f"{name}: is no parked batch that can be read",
            remedy="keep the file for whoever can, or drop it with `holdfast agent parked drop`",
        )
    note = entry.note
    return Parked(
        identity,
        entry.frame,
        str(note.get("reason", "")),
        str(note.get("detail", "")),
        str(note.get("collector", "")),
        int(note.get("parked_at_unix_ns", 0)),
    )


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A parked batch whose file is damaged."""

    name: str
    size: int
    why: str

    @property
    def numbers(self) -> str:
        start, _, end = self.name.removesuffix(PARKED).partition("-")
        return f"{int(start)}-{int(end)}"


async def all_parked(folder: Folder) -> AsyncIterator[Parked | Unreadable]:
    """One that is damaged does not hide the others."""
    for name in await parked_names(folder):
        try:
            parked = await read_parked(folder, name)
        except Corrupt as error:
            yield Unreadable(name, await folder.size(name) or 0, str(error))
            continue
        if parked is not None:
            yield parked


async def find_parked(folder: Folder, numbers: str) -> Parked:
    """By its numbers, as people write them: ``120-140``. ``Corrupt`` if its file is damaged."""
    parked = await read_parked(folder, await find_name(folder, numbers))
    if parked is None:
        raise _no_such(numbers)
    return parked


async def find_name(folder: Folder, numbers: str) -> str:
    """The file of a parked batch, whatever is in it."""
    start, _, end = numbers.removesuffix(PARKED).partition("-")
    name = f"{start:0>20}-{end:0>20}{PARKED}"
    if not _NAME.fullmatch(name) or await folder.size(name) is None:
        raise _no_such(numbers)
    return name


def _no_such(numbers: str) -> NotFound:
    return NotFound(f"no parked batch {numbers}", remedy="see `holdfast agent parked list`")
