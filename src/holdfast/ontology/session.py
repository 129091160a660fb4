"""Ontology: a session on typed entities and relations. Ensure and retract queue intents; commit makes them history.

    async with hf.ontology(Customer, Product, Subscription) as onto:
        onto.ensure(Customer(id="c1", name="Ada"))
        commit = await onto.commit(metadata={"why": "import"})

Without ``expect`` and ``if_head`` the last writer wins: a commit that lost a race is redone over what the winner
wrote. With them it is refused, and the application decides again on what it then reads.

Intents are validated by ``ensure`` and ``retract``, and stay queued through every failure until they are committed or
discarded. Leaving the session writes indexes and releases the lock. Leaving it without an exception while intents are
queued is an error, because they would never be committed.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from types import TracebackType
from typing import Any, Self, TypeVar, overload

from holdfast.base import codec
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.commit.attempt import PLAIN, Bulk, Order, Witness
from holdfast.ontology.commit.commit import Commit, Committer
from holdfast.ontology.commit.info import Info, read_info
from holdfast.ontology.commit.lock import LockOptions, WriteLock
from holdfast.ontology.commit.view import View
from holdfast.ontology.feed import Feed
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.batch import (
    Absent,
    AtCommit,
    Batch,
    Equal,
    Expectation,
    Identity,
    Intent,
    Row,
    digest,
    size,
)
from holdfast.ontology.format.data.intake import queued
from holdfast.ontology.format.manifest import Manifest
from holdfast.ontology.maintain import migrate as migration
from holdfast.ontology.maintain.upkeep import Upkeep
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.engine import Engine
from holdfast.ontology.query.query import Query, ask_about, ask_by_identity
from holdfast.ontology.types.model import Mixin
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import UNKEYED, TypeInfo, end_key, key_text, type_info

M = TypeVar("M", bound=Mixin)


class Anything(Enum):
    ANY = "whatever is there"


ANY = Anything.ANY
_GIVE = 'make objects, as in ensure(Customer(id="c1")), or give a table and its type: ensure(table, Customer)'


@dataclass(frozen=True, slots=True)
class Options:
    """The options of a session. The times are those of the specification's options with similar names."""

    runtime_id: str | None = None
    lock_timeout_ms: int = 5_000
    lease_ttl_ms: int = 30_000
    memory_limit: str = "256MB"
    """The limit of DuckDB, which answers queries."""
    compaction: bool = True
    """Merge small files in the background, after commits."""


class Ontology:
    def __init__(
        self, store: Store, ambient: Ambient, types: Iterable[type[Mixin]], options: Options | None = None
    ) -> None:
        options = options if options is not None else Options()
        self.store = store
        self.ambient = ambient
        self._types: dict[TypeId, TypeInfo] = {}
        for python in types:
            self._add(python)
        self.runtime_id = options.runtime_id or f"holdfast-{ambient.ids.attempt()}{ambient.ids.attempt()}"
        self._view = View(store)
        lock_options = LockOptions(ttl_ms=options.lease_ttl_ms, timeout_ms=options.lock_timeout_ms)
        self._lock = WriteLock(store, self.runtime_id, ambient, lock_options)
        self._upkeep = Upkeep(store, ambient, self._view, self._lock, self.runtime_id, compaction=options.compaction)
        self._lock.on_idle = self._upkeep.idle
        self._committer = Committer(
            store,
            ambient,
            self._view,
            self._types,
            runtime_id=self.runtime_id,
            lock=self._lock,
            on_commit=self._committed,
        )
        self._warm = Warm(store, options.memory_limit)
        self._engine = Engine(store, self._view, self._warm)

    def __repr__(self) -> str:
        types = ", ".join(type_id.name for type_id in self._types) or "no types"
        waiting = f", {self.pending} intents not committed" if self.pending else ""
        return f"<Ontology of {types}{waiting}>"

    # --- intents ---

    def ensure(
        self,
        given: Any,
        of: type[Mixin] | None = None,
        *,
        expect: Mixin | int | Anything | None = ANY,
    ) -> int:
        """Queue objects to be stored: one, an iterable, or an Arrow table ``of`` a type.

        ``expect`` is what the application expects to be stored now: None for nothing, the number of the commit that
        wrote it last, or the object as it was read. If that does not hold, the commit raises ``Conflict``.
        """
        intents = [given] if isinstance(given, Batch) else self._intents(given, of, expect)
        self._committer.queue += intents
        return size(intents)

    def _intents(self, given: Any, of: type[Mixin] | None, expect: Any) -> list[Intent | Batch]:
        intents: list[Intent | Batch] = []
        for type_id, rows in self._rows(given, of):
            if isinstance(rows, Batch) and expect is ANY:
                intents.append(rows)
                continue
            intents += [
                Intent(type_id, row.identity, row.fields_json, self._expectation(expect, type_id, row.identity))
                for row in rows
            ]
        return intents

    def retract(self, of: type[Mixin], *key: Any, expect: Mixin | int | Anything = ANY) -> None:
        """Queue the object with this key to be retracted: the key of an entity; both ends, and the instance key, of a
        relation. History keeps the object.
        """
        self._committer.queue.append(self._retraction(of, key, expect))

    def _retraction(self, of: type[Mixin], key: tuple[Any, ...], expect: Any) -> Intent:
        info = self.type_info(of)
        identity = _identity(info, key)
        return Intent(info.type_id, identity, None, self._expectation(expect, info.type_id, identity))

    @property
    def pending(self) -> int:
        """How many intents and messages are queued."""
        return size(self._committer.queue) + len(self._committer.outbox)

    def discard(self) -> int:
        """Drop what is queued; returns how much."""
        return self._committer.discard()

    async def commit(
        self,
        metadata: Mapping[str, Any] | None = None,
        *,
        if_head: int | None = None,
        witness: Witness | None = None,
    ) -> Commit | None:
        """Commit what is queued, as a whole; None if it changes nothing. With ``if_head``, only if that is the head."""
        self._warm.check_open()
        _check_metadata(metadata)
        if if_head is not None and type(if_head) is not int:
            raise Invalid(f"if_head is {if_head!r}", remedy="give the number of a commit, such as the head of info()")
        await self._upkeep.catch_up()
        return await self._committer.commit(metadata, if_head=if_head, witness=witness)

    async def agreed(self, of: type[Mixin]) -> tuple[Ledger, int]:
        """The ledger at the current head, and the version of the schema that a type is written under."""
        type_id = self.type_info(of).type_id
        await self._committer.refresh()
        return self._view.ledger, (await self._view.agree(self._types, {type_id}, PLAIN)).versions[type_id]

    async def land(self, bulk: Bulk, metadata: Mapping[str, Any], if_head: int | None = None) -> Commit | None:
        """Commit rows that were decided elsewhere; ``BulkOutdated`` if the decision is not valid any more."""
        return await self._committer.commit(metadata, if_head=if_head, order=Order(bulk=bulk))

    @property
    def chain(self) -> Chain:
        """The history that commits of this session are based on."""
        return self._view.chain

    async def register(self) -> Commit | None:
        """Register the session's types without rows, and new schemas that can read all that is stored."""
        return await self._committer.commit(order=Order(register=True))

    @overload
    async def migrate(self) -> migration.Preview: ...
    @overload
    async def migrate(self, token: str, *, why: str = "") -> Commit | None: ...
    async def migrate(self, token: str | None = None, *, why: str = "") -> migration.Preview | Commit | None:
        """Make the schemas in the store those of the session's classes, and the rows with them, in one commit.

        Without a token this is a preview, which has the token. With it, the commit is made, or None returned if there
        is nothing to do. Types that differ by more than optional fields need an ``upgrader``.
        """
        if token is not None and self.pending:
            raise Invalid(f"{self.pending} intents are queued", remedy="commit() or discard() them, then migrate")
        plan = await migration.preview(self.store, self._types, count=token is None)
        if token is None:
            return plan
        made = await migration.apply(
            self.store, self.ambient, plan, token, lock=self._lock, by=self.runtime_id, why=why
        )
        await self._committer.refresh()
        return made

    def _committed(self, manifest: Manifest) -> None:
        """A commit of this session is on the chain, perhaps one that its caller was cancelled for."""
        self._upkeep.note(manifest)

    # --- queries ---

    def query(self, of: type[M]) -> Query[M]:
        """A query: ``await onto.query(Customer).where(Customer.tier == "Gold").all()``."""
        return Query(self._engine, ask_about(self.type_info(of)))

    async def get(self, of: type[M], *key: Any) -> M | None:
        """The object with this key, at the current head; None if there is none. A query by key."""
        info = self.type_info(of)
        found = await Query[M](self._engine, ask_by_identity(info, _identity(info, key))).all()
        return found[0] if found else None

    async def all(self, of: type[M]) -> list[M]:
        """Every object of a type, at the current head, ordered by key: ``query(of).all()``."""
        return await self.query(of).all()

    def changes(self, *types: type[Mixin], since: int = 0) -> Feed:
        """What the commits after ``since`` changed: ``async for change in onto.changes(since=7)``.

        ``arrow()`` returns a table; ``follow()`` continues with later commits. Without types, of all types.
        """
        wanted = [self.type_info(each).type_id for each in types] or None
        return Feed(self.store, since=since, types=wanted, known=self._types, chain=self.chain)

    async def info(self) -> Info:
        """Head, files and index lag per type, the lock, and the last warning of upkeep."""
        return await read_info(self.store, self.ambient, self.chain, last_index_warning=self._upkeep.warning)

    async def flush(self) -> bool:
        """Write all indexes; False if that failed, see ``info``."""
        return await self._upkeep.flush(everything=True)

    async def close(self) -> None:
        """Write what is due and release the lock. What fails here is done by the next session."""
        try:
            await self._upkeep.close()
        finally:
            try:
                await self._lock.close()
            finally:
                await self._warm.close()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.close()
        if error is None and self.pending:
            raise Invalid(
                f"the session was left with intents that were never committed: {self.pending}",
                remedy="await commit(), or discard()",
            )

    # --- types ---

    def _add(self, python: type[Mixin]) -> None:
        info = type_info(python)
        known = self._types.get(info.type_id)
        if known is not None and known.python is not python:
            raise Invalid(f"two classes are called {info.type_id.name}", remedy="give one of them another name=")
        self._types[info.type_id] = info

    def type_info(self, python: type[M]) -> TypeInfo:
        """A type of this session."""
        self._warm.check_open()
        given: object = python
        if not (isinstance(given, type) and issubclass(given, Mixin)):
            raise Invalid(f"{given!r} is not an entity or relation type", remedy="give the class, as in Customer")
        info = type_info(python)
        if info.type_id not in self._types:
            raise Invalid(
                f"{python.__name__} is not a type of this session", remedy="name it when you open the ontology"
            )
        return info

    def _rows(self, given: Any, of: type[Mixin] | None) -> Iterable[tuple[TypeId, list[Row] | Batch]]:
        if isinstance(given, Mixin):
            info = self.type_info(type(given))
            return [(info.type_id, queued(info, given))]
        if of is not None or hasattr(given, "__arrow_c_stream__"):
            info = self.type_info(of) if of is not None else self._only_type()
            return [(info.type_id, queued(info, given))]
        return self._mixed(given)

    def _only_type(self) -> TypeInfo:
        if len(self._types) != 1:
            raise Invalid("a table does not say of which type it is", remedy="ensure(table, Customer)")
        return next(iter(self._types.values()))

    def _mixed(self, given: Any) -> Iterable[tuple[TypeId, list[Row] | Batch]]:
        """Objects of any of the session's types, by type. Their order within a type is kept."""
        if not isinstance(given, Iterable) or isinstance(given, str | bytes | Mapping):
            raise Invalid(f"a {type(given).__name__} is not an object of a type, nor several", remedy=_GIVE)
        parts: dict[type[Mixin], list[Mixin]] = {}
        for one in given:
            if not isinstance(one, Mixin):
                raise Invalid(f"a {type(one).__name__} is not an object of a type of this session", remedy=_GIVE)
            parts.setdefault(type(one), []).append(one)
        return [(info.type_id, queued(info, some)) for info, some in ((self.type_info(p), s) for p, s in parts.items())]

    def _expectation(self, expect: Any, type_id: TypeId, identity: Identity) -> Expectation | None:
        if expect is ANY:
            return None
        if expect is None:
            return Absent()
        if type(expect) is int:
            return AtCommit(expect)
        if not isinstance(expect, Mixin):
            raise Invalid(
                f"{expect!r} cannot be expected of {type_id.name}",
                remedy="expect None, the number of a commit, or the object as it was read",
            )
        ((its_type, rows),) = self._rows(expect, None)
        if its_type != type_id or rows[0].identity != identity:
            raise Invalid(f"what is expected of {type_id.name} is another object", remedy="expect the same key")
        return Equal(digest(rows[0].fields_json))


def _check_metadata(metadata: Any) -> None:
    if metadata is None:
        return
    if not isinstance(metadata, Mapping) or not all(isinstance(name, str) for name in metadata):
        raise Invalid("metadata is not a mapping from names to values", remedy='write metadata={"why": "..."}')
    try:
        codec.encode(dict(metadata))
    except Invalid as error:
        raise Invalid(f"metadata: {error}", remedy="use what JSON has: text, numbers, lists, mappings") from error


def _identity(info: TypeInfo, key: tuple[Any, ...]) -> Identity:
    if info.ends is None:
        if len(key) != 1:
            raise Invalid(f"{info.name} has one key, and {len(key)} were given")
        return (end_key(info, key[0], f"{info.name} key"),)
    wanted = 2 if info.key_field is None else 3
    if len(key) != wanted:
        raise Invalid(f"{info.name} is identified by {wanted} keys, and {len(key)} were given")
    ends = tuple(end_key(end, value, f"{info.name} end") for end, value in zip(info.ends, key, strict=False))
    return (*ends, UNKEYED if info.key_field is None else key_text(key[2]))


__all__ = ["ANY", "Commit", "Info", "Ontology", "Options"]
