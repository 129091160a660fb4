"""How far the reconciler has come: a position among references by time (``telemetry.discover``).

``through_unix_ns``: every reference by time that the store held at that moment has been followed. It never runs
backwards, unless it was ahead of the time.

A store has no position before its first complete scan of all manifests, which also finds batches that no reference
leads to. The ids that a position holds are in an object of their own; if it is
gone, some batches are looked at once more.

Two reconcilers may run at once: the one that is further along is kept, and each follows what it has not seen.
"""

from collections.abc import Iterable
from dataclasses import asdict, dataclass, fields, replace

from holdfast.base import codec
from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.register import UNCHANGED, Register, Unchanged
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.pipeline import layout
from holdfast.telemetry.discover import CHECKPOINT_FORMAT, CHECKPOINT_VERSION, Position, position_in

_TYPES: dict[str, type] = {"recent": str, "broken_after": str, "position": dict}


@dataclass(frozen=True, slots=True)
class Checkpoint:
    through_unix_ns: int
    position: Document | None = None
    """``Position.document()`` without the ids of ``recent``; None until the first scan of all manifests has ended."""
    recent: str | None = None
    """The key of the object that holds the ids of ``recent``."""
    deep_at_unix_ns: int = 0
    """When the last deep look (``telemetry.discover``) began."""
    full_at_unix_ns: int | None = None
    """When the last completed full scan began."""
    broken_after: str | None = None
    """The unreadable batch that was retried last, where the next run continues; None if one run retries all of them."""

    @property
    def newest_ns(self) -> int:
        """The latest modification time of any reference seen, by the store's clock."""
        return 0 if self.position is None else int(self.position.get("newest_ns", 0))


class _Shape:
    def read(self, document: Document, key: str) -> Checkpoint:
        codec.expect(document, format_name=CHECKPOINT_FORMAT, newest=CHECKPOINT_VERSION, key=key)
        names = [each.name for each in fields(Checkpoint) if each.name in document]
        found = {name: document[name] for name in names}
        wrong = [name for name in names if not isinstance(found[name], _TYPES.get(name, int))]
        if any(found[name] is not None for name in wrong) or not isinstance(found.get("through_unix_ns"), int):
            raise Corrupt(f"{key}: not the checkpoint of a reconciler")
        return Checkpoint(**found)

    def write(self, value: Checkpoint, previous: Document | None) -> Document:
        return {**(previous or {}), "format": CHECKPOINT_FORMAT, "version": CHECKPOINT_VERSION, **asdict(value)}


class Checkpoints:
    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._register: Register[Checkpoint] = Register(store, layout.CHECKPOINT, _Shape(), ambient)

    async def read(self) -> Checkpoint | None:
        found = await self._register.read()
        return None if found is None else found.value

    async def advance(self, operation_id: str, to: Checkpoint) -> Checkpoint:
        """Advance the checkpoint, unless another reconciler has advanced it further; returns the current one. A
        checkpoint that is in the future was written under a wrong clock, and is replaced.
        """

        def change(value: Checkpoint | None) -> Checkpoint | Unchanged:
            if value is None:
                return to
            ahead = value.through_unix_ns > self._ambient.clock.wall_ns()
            further = value.through_unix_ns > to.through_unix_ns or (value.position is not None and to.position is None)
            if further and not ahead:
                return UNCHANGED
            deep = to.deep_at_unix_ns if ahead else max(value.deep_at_unix_ns, to.deep_at_unix_ns)
            full = max(value.full_at_unix_ns or 0, to.full_at_unix_ns or 0) or None
            return replace(to, full_at_unix_ns=full, deep_at_unix_ns=deep)

        return (await self._register.edit(operation_id, change)).value

    async def scanned(self, operation_id: str, began_ns: int) -> None:
        """Record that a full scan, begun at this time, has ended. The position among references by time does not
        change."""

        def change(value: Checkpoint | None) -> Checkpoint | Unchanged:
            base = value if value is not None else Checkpoint(0)
            return replace(base, full_at_unix_ns=max(base.full_at_unix_ns or 0, began_ns))

        await self._register.edit(f"{operation_id}/full", change)

    async def write_recent(self, ids: Iterable[bytes]) -> str:
        """Store the ids of a position; returns their key."""
        key = layout.recent_key(self._ambient.ids.unique())
        await self._store.put(key, b"".join(sorted(ids)), CREATE)
        return key

    async def store_now(self) -> int:
        """The time of the store's own clock, read from an object that is written for this purpose."""
        await self._store.put(layout.CLOCK, codec.encode({"write_id": self._ambient.ids.write_id()}), OVERWRITE)
        return (await self._store.head(layout.CLOCK)).modified_ns

    async def drop_recent(self, keep: str | None) -> None:
        """Delete id objects that no checkpoint refers to any more."""
        stale = [key async for key in self._store.keys(layout.RECENT) if key != keep]
        await self._store.delete_many(stale)


async def read_position(store: Store, checkpoint: Checkpoint | None) -> Position | None:
    """The reconciler's position among references by time; None until the first scan has ended."""
    return None if checkpoint is None else await position_in(store, asdict(checkpoint))


def position_document(position: Position) -> Document:
    """The part of a position that a checkpoint holds: everything but the ids."""
    document = position.document()
    del document["recent"]
    return document
