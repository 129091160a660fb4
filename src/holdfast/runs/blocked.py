"""Blocked: what is known of a call that ended in an error which the same call would meet again.

Code and journal disagree, the version is another, a result cannot be written down, a payload is damaged: such a call
raises to its caller and adds nothing to the journal, because a mended call must be able to go on from there. So that
people who look at the run see it too, a mark is left in the index: the error in the key, for lists, and the message in
the object. Derived from no journal, decides nothing: a mark that is lost only says less. It counts for as long as
nothing has happened to the run since, and the next change of the run's key in the index removes it.
"""

from dataclasses import dataclass

from holdfast.base import codec
from holdfast.base.clock import iso
from holdfast.base.errors import Corrupt, HoldfastError, Incompatible, Invalid, NotFound
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.runs.errors import VersionMismatch
from holdfast.runs.run import RunState
from holdfast.runs.summary import Block, block_key, open_folder, read_key

FORMAT = "holdfast.blocked"

BLOCKING = (Invalid, Incompatible, Corrupt)
"""Raised while a session is at work, these are the run's own trouble."""


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why the latest call could not go on, and what to do about it."""

    type: str
    message: str
    remedy: str | None
    at: str


def is_refusal(error: HoldfastError) -> bool:
    """Of a call that was refused before it opened a session: whether that tells of the run, not of the call."""
    return isinstance(error, VersionMismatch)


async def leave_mark(store: Store, ambient: Ambient, run_id: str, state: RunState, error: HoldfastError) -> None:
    """One PUT. The same trouble again overwrites its own mark."""
    document = codec.stamp(
        {
            "type": type(error).__name__,
            "message": str(error),
            "remedy": error.remedy,
            "at": iso(ambient.clock.wall_ns()),
        },
        format_name=FORMAT,
        version=1,
        write_id=ambient.ids.write_id(),
    )
    block = Block(state.session, state.next_offset, type(error).__name__)
    await store.put(block_key(run_id, block), codec.encode(document))


async def find_mark(store: Store, run_id: str, state: RunState) -> Blocked | None:
    """The mark of the latest call, if nothing has happened since. One LIST, and one GET where there is one."""
    if state.finished:
        return None
    latest: tuple[Block, str] | None = None
    async for key in store.keys(open_folder(run_id)):
        said = read_key(key)
        if said is None or not isinstance(said[1], Block) or said[1].rank < (state.session, state.next_offset):
            continue
        if latest is None or said[1].rank >= latest[0].rank:
            latest = said[1], key
    if latest is None:
        return None
    try:
        document = codec.decode((await store.get(latest[1])).body, key=latest[1])
    except NotFound:
        return None
    remedy = document.get("remedy")
    return Blocked(
        latest[0].error,
        str(document.get("message", "")),
        remedy if isinstance(remedy, str) else None,
        str(document.get("at", "")),
    )
