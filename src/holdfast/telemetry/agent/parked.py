"""Parked batches: a collector has rejected them as they are, and only an operator may drop them.

One file per batch, named by its sequence numbers, with the reason and the frame. Parked batches are sent again now and
then: so the agent learns of an operator's resolution, and a batch that exceeded a limit is accepted after the limit was
raised. Reading and dropping need no lock, because files are created and removed atomically.
"""

import hashlib
import re
from collections.abc import AsyncIterator
from dataclasses import dataclass

from holdfast.base.errors import Corrupt, NotFound
from holdfast.telemetry.agent.segment import Entry, read_entry
from holdfast.telemetry.folder import Folder
from holdfast.telemetry.frame import ANY_SIZE, FrameInvalid, Identity, inspect

PARKED = ".parked"
_NAME = re.compile(r"(\d{20})-(\d{20})\.parked")


@dataclass(frozen=True, slots=True)
class Parked:
    identity: Identity
    frame: bytes
    reason: str
    """The reason in the collector's answer."""
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
    """Durable when it returns. Returns the size of the file."""
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
    """None if the file does not exist any more."""
    data = await folder.read(name)
    if data is None:
        return None
    entry = read_entry(data)
    try:
        identity = None if entry is None else inspect(entry.frame, ANY_SIZE).identity
    except FrameInvalid:
        identity = None
    if entry is None or identity is None:
        raise Corrupt(
            f"{name}: the parked batch cannot be read",
            remedy="keep a copy of the file for analysis, or drop it with `holdfast agent parked drop`",
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
    """All parked batches, the damaged ones as ``Unreadable``."""
    for name in await parked_names(folder):
        try:
            parked = await read_parked(folder, name)
        except Corrupt as error:
            yield Unreadable(name, await folder.size(name) or 0, str(error))
            continue
        if parked is not None:
            yield parked


async def find_parked(folder: Folder, numbers: str) -> Parked:
    """Find a batch by its sequence numbers, such as ``120-140``. ``Corrupt`` if its file is damaged."""
    parked = await read_parked(folder, await find_name(folder, numbers))
    if parked is None:
        raise _no_such(numbers)
    return parked


async def find_name(folder: Folder, numbers: str) -> str:
    """The file name of a parked batch, whatever the file contains."""
    start, _, end = numbers.removesuffix(PARKED).partition("-")
    name = f"{start:0>20}-{end:0>20}{PARKED}"
    if not _NAME.fullmatch(name) or await folder.size(name) is None:
        raise _no_such(numbers)
    return name


def _no_such(numbers: str) -> NotFound:
    return NotFound(f"no parked batch {numbers}", remedy="see `holdfast agent parked list`")
