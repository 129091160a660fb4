"""How far the reconciler has come, and what it has seen of the time just before.

``through_unix_ns``: every reference by time that the store held at that moment has been followed. It never runs
backwards, unless it was ahead of the time. ``cursor_ns`` is the same by the store's own clock: the latest reference
that was seen. Whatever was written an overlap before the cursor has been followed, whichever clock is wrong; of the
time since, what ``recent`` names has. ``recent`` may lack some, which are then looked at once more.

Two reconcilers may run at once: the one that is further along is believed, and each follows what it has not seen.
"""

from collections.abc import Collection, Iterable
from dataclasses import asdict, dataclass, field, fields, replace

from holdfast.base import codec
from holdfast.base.codec import MALFORMED, Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.register import UNCHANGED, Register, Unchanged
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.pipeline import layout

FORMAT = "holdfast.pipeline.reconcile"
SHORT = 12
"""Bytes of a manifest id that tell it from others."""
WORDS = ("recent", "broken_after")
"""What a checkpoint says in words and not in numbers."""
DOCUMENTS = ("marks",)


@dataclass(frozen=True, slots=True)
class Checkpoint:
    through_unix_ns: int
    cursor_ns: int = 0
    """By the store's clock."""
    recent: str | None = None
    """The key of what was seen lately."""
    deep_at_unix_ns: int = 0
    """When the day before was last looked at, and where the cursor then stood."""
    deep_cursor_ns: int = 0
    full_at_unix_ns: int | None = None
    """When the last full scan that was finished had begun."""
    follow_ns: int | None = None
    """From which hours on references are listed. It follows from those that were seen, so that no driver's clock, which
    may be ahead, decides what is passed over; without it, ``through_unix_ns`` does."""
    broken_after: str | None = None
    """Of batches that cannot be read, which were looked at last; None if one run takes them all."""
    marks: Document | None = None
    """What was heard of collectors; see ``silence``."""


class _Shape:
    def read(self, document: Document, key: str) -> Checkpoint:
        codec.expect(document, format_name=FORMAT, newest=1, key=key)
        names = [each.name for each in fields(Checkpoint) if each.name in document]
        found = {name: document[name] for name in names}
        kinds = {**dict.fromkeys(WORDS, str), **dict.fromkeys(DOCUMENTS, dict)}
        wrong = [name for name in names if not isinstance(found[name], kinds.get(name, int))]
        if any(found[name] is not None for name in wrong) or not isinstance(found.get("through_unix_ns"), int):
            raise Corrupt(f"{key}: not the checkpoint of a reconciler")
        return Checkpoint(**found)

    def write(self, value: Checkpoint, previous: Document | None) -> Document:
        return {
            **(previous or {}),
            "format": FORMAT,
            "version": 1,
            **asdict(value),
        }


class Checkpoints:
    def __init__(self, store: Store, ambient: Ambient) -> None:
        self._store = store
        self._ambient = ambient
        self._register: Register[Checkpoint] = Register(store, layout.CHECKPOINT, _Shape(), ambient)

    async def read(self) -> Checkpoint | None:
        found = await self._register.read()
        return None if found is None else found.value

    async def advance(self, operation_id: str, to: Checkpoint) -> Checkpoint:
        """Move on, unless somebody is further along already; where it stands then. Whoever is further along than it is
        late had a clock that was ahead.
        """

        def change(value: Checkpoint | None) -> Checkpoint | Unchanged:
            if value is None:
                return to
            ahead = value.through_unix_ns > self._ambient.clock.wall_ns()
            if value.through_unix_ns > to.through_unix_ns and not ahead:
                return UNCHANGED
            deep = to.deep_at_unix_ns or value.deep_at_unix_ns
            return replace(
                to,
                cursor_ns=max(value.cursor_ns, to.cursor_ns),
                full_at_unix_ns=value.full_at_unix_ns,
                deep_at_unix_ns=deep if ahead else max(value.deep_at_unix_ns, to.deep_at_unix_ns),
                deep_cursor_ns=max(value.deep_cursor_ns, to.deep_cursor_ns),
            )

        return (await self._register.edit(operation_id, change)).value

    async def scanned(self, operation_id: str, began_ns: int) -> None:
        """A full scan that began then has been finished. It says nothing of references by time."""

        def change(value: Checkpoint | None) -> Checkpoint | Unchanged:
            base = value if value is not None else Checkpoint(0)
            return replace(base, full_at_unix_ns=max(base.full_at_unix_ns or 0, began_ns))

        await self._register.edit(f"{operation_id}/full", change)

    async def write_recent(self, seen: Collection[bytes]) -> str:
        """Keep these short ids; the key of where they are."""
        key = layout.recent_key(self._ambient.ids.unique())
        await self._store.put(key, b"".join(sorted(seen)), CREATE)
        return key

    async def read_recent(self, key: str | None) -> "Recent":
        """What was seen lately. If it is gone, a later checkpoint has replaced it, and nothing is known."""
        found = await self._store.find(key) if key is not None else None
        return Recent() if found is None else Recent.of(found.body)

    async def store_now(self) -> int:
        """What the store's own clock says, from an object that is made for this."""
        await self._store.put(layout.CLOCK, codec.encode({"write_id": self._ambient.ids.write_id()}), OVERWRITE)
        return (await self._store.head(layout.CLOCK)).modified_ns

    async def drop_recent(self, keep: str | None) -> None:
        """Delete what no checkpoint names any more."""
        stale = [key async for key in self._store.keys(layout.RECENT) if key != keep]
        await self._store.delete_many(stale)


@dataclass(slots=True)
class Recent:
    """Short forms of manifest ids."""

    seen: set[bytes] = field(default_factory=set)

    @classmethod
    def of(cls, body: bytes) -> "Recent":
        return cls({body[at : at + SHORT] for at in range(0, len(body), SHORT)})

    def knows(self, manifest_id: str) -> bool:
        return short(manifest_id) in self.seen


def short(manifest_id: str) -> bytes:
    try:
        return bytes.fromhex(manifest_id[: 2 * SHORT])
    except MALFORMED as error:
        raise Corrupt(f"{manifest_id[:80]!r} is no manifest id") from error


def shorts(manifest_ids: Iterable[str]) -> set[bytes]:
    return {short(each) for each in manifest_ids}
