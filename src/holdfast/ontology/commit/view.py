"""View: what a session knows of the store as of one head: the ledger, the state of each type, the schemas.

The head only moves forward along one chain. A head that is not a descendant of the one we know means that the store was
restored or made anew under a living session; what it knows is then worth nothing, and it stops with ``Corrupt``.

``Overtaken`` where payload was destroyed since the head that we know: move on to the head of now.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt, check
from holdfast.objects.store import Store, Version
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.catalog import Stored
from holdfast.ontology.chain.chain import KnownHead
from holdfast.ontology.chain.redaction_fence import fence_of
from holdfast.ontology.chain.resolve import Resolved, with_files
from holdfast.ontology.chain.state import TypeState, see_file
from holdfast.ontology.commit.attempt import Order
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import followed
from holdfast.ontology.format.data.intents import Change, Identity, Row
from holdfast.ontology.format.data.stored_rows import read_rows
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.manifest import Manifest, Registered
from holdfast.ontology.types.errors import SchemaDrift, TypeDropped
from holdfast.ontology.types.refs import FileRef, SchemaRef, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass(frozen=True, slots=True)
class Agreed:
    """The schema versions that a commit is made under, and those that it introduces."""

    versions: Mapping[TypeId, int]
    registered: Sequence[Registered]


class View(KnownHead):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store
        self._states: dict[TypeId, TypeState] = {}
        self._opened: int | None = None
        """The first head that we knew."""
        self._since: dict[TypeId, int] = {}
        """Where it is another commit up to which we know of a type's end."""
        self._stored: dict[tuple[TypeId, SchemaRef | None], Stored | None] = {}

    async def move_to(self, head: Head) -> None:
        if self.known and head == self.head:
            return
        before = self.ledger.place
        if self.known and before is not None and head.commit_id < before.commit_id:
            raise _another_life(head, self.head)
        ledger = await self.chain.ledger(head.place, self.ledger)
        if before is not None and await self.chain.at(ledger.place, before.commit_id) != before:
            raise _another_life(head, self.head)
        if ledger.redacted != self.ledger.redacted:
            self._states.clear()  # they may know rows that are gone
        self.head, self.ledger, self.known = head, ledger, True
        if self._opened is None:
            self._opened = head.commit_id

    def advance(self, head: Head, version: Version, manifest: Manifest, rows: Mapping[TypeId, Sequence[Row]]) -> None:
        """A commit of our own, which is on the chain."""
        for type_id, ref in (manifest.summary.schemas if manifest.summary is not None else {}).items():
            if ref is None:
                self._states.pop(type_id, None)
                self._since[type_id] = manifest.commit_id  # it was us who dropped it: we may begin it anew
            elif type_id in self._states:
                self._states[type_id].generation = ref.generation
        for type_id in manifest.touched - set(rows):
            self._states.pop(type_id, None)  # written elsewhere, and too many to be known here
        for type_id, written in rows.items():
            self._states[type_id].committed(written, manifest.commit_id)
        for state in self._states.values():
            if state.commit_id == self.ledger.commit_id:
                state.commit_id = manifest.commit_id  # untouched
        self.head = replace(head, version=version)
        self.ledger = followed(self.ledger, manifest)
        self.chain.remember(manifest)

    # --- what is current ---

    async def states(self, types: Iterable[TypeId]) -> Mapping[TypeId, TypeState]:
        """The state of each type, as of the head."""
        return {type_id: await self._state(type_id) for type_id in types}

    async def _state(self, type_id: TypeId) -> TypeState:
        ledger = self.ledger
        generation = ledger.generation_of(type_id)
        state = self._states.get(type_id)
        fence = await fence_of(self._store, self.chain, ledger)
        if state is None or state.generation != generation:

            async def load(found: Resolved) -> TypeState:
                made = TypeState(type_id, generation)
                await made.bring_forward(self._store, found.files(), ledger.commit_id, fence)
                return made

            state = await with_files(self._store, self.chain, ledger, type_id, load, fence)
            self._states[type_id] = state
        elif state.commit_id < ledger.commit_id:
            files: list[FileRef] = []
            if ledger.head_of(type_id).commit_id > state.commit_id:
                files = await self.chain.files(state.commit_id, ledger.place)
            await state.bring_forward(self._store, files, ledger.commit_id, fence)
        return state

    async def rows(self, type_id: TypeId, changes: Sequence[Change]) -> list[Row]:
        """The rows of these changes; a retracted one keeps the fields that it had."""
        gone = {change.identity for change in changes if change.fields_json is None}
        kept = await self._fields(type_id, gone) if gone else {}
        return [
            Row(change.identity, kept[change.identity], retracted=True)
            if change.fields_json is None
            else Row(change.identity, change.fields_json)
            for change in changes
        ]

    async def _fields(self, type_id: TypeId, identities: set[Identity]) -> dict[Identity, str]:
        state = await self._state(type_id)
        commits = {identity: known.commit_id for identity in identities if (known := state.get(identity)) is not None}
        wanted = set(commits.values())
        fence = await fence_of(self._store, self.chain, self.ledger)

        async def read(resolved: Resolved) -> dict[Identity, str]:
            texts: dict[Identity, str] = {}
            for entry in resolved.entries:
                if any(entry.first <= commit_id <= entry.last for commit_id in wanted):
                    body = await see_file(self._store, FileRef(entry.last, type_id, entry.path), fence)
                    for commit_id, row in await blocking(read_rows, body, entry.path):
                        if commits.get(row.identity) == commit_id:
                            texts[row.identity] = row.fields_json
            return texts

        found = await with_files(self._store, self.chain, self.ledger, type_id, read, fence)
        check(found.keys() == identities, f"{type_id.label}: rows of {len(identities - found.keys())} keys are missing")
        return found

    # --- schemas ---

    def changed_by(self, order: Order, types: Mapping[TypeId, TypeInfo]) -> bool:
        """Whether an order would change anything, apart from rows."""
        known = self.ledger.schemas
        wanted = types if order.register else {each: types[each] for each in order.migrate}
        new = any(each not in known or known[each].hash != info.schema_hash for each, info in wanted.items())
        ends = any(self._ends_anything(each, purge=purge) for each, purge in order.drop.items())
        return new or ends or order.redact is not None or order.bulk is not None

    def _ends_anything(self, type_id: TypeId, *, purge: bool) -> bool:
        ledger = self.ledger
        live = type_id in ledger.schemas or ledger.head_of(type_id).files > 0
        return live or (purge and any(not life.purged for life in ledger.lives.get(type_id, ())))

    def _check_life(self, type_id: TypeId) -> None:
        """A type that was dropped after we came to know it is not begun anew by accident."""
        ended = self.ledger.lives.get(type_id)
        if ended and ended[-1].end > self._since.get(type_id, self._opened or 0):
            raise TypeDropped(f"{type_id.label} was dropped by commit {ended[-1].end}, and this session is older")

    async def agree(self, types: Mapping[TypeId, TypeInfo], touched: Collection[TypeId], order: Order) -> Agreed:
        """Under which version each type is written.

        A type that the store does not know is registered. One that it knows otherwise is ``SchemaDrift``, where
        touched; with ``register``, a schema that can read all that is stored becomes the next version; a type that
        is migrated gets its schema in any case. ``TypeDropped`` for a touched type that has ended meanwhile.
        """
        register = order.register
        versions: dict[TypeId, int] = {}
        registered: list[Registered] = []
        for type_id, info in types.items():
            if type_id in order.drop:
                continue
            if register or type_id in touched:
                self._check_life(type_id)
            known = self.ledger.schemas.get(type_id)
            if known is None and type_id in self.ledger.lives and type_id not in touched and not register:
                continue  # dropped, and not asked for
            if known is not None and known.hash == info.schema_hash:
                versions[type_id] = known.version_id
                continue
            stored = await self._stored_schema(type_id, known)
            new_life = known is None and type_id in self.ledger.lives
            drift = info.drift(stored.schema) if stored is not None and not new_life else None
            if drift and not ((register and drift.additive) or type_id in order.migrate):
                if register or type_id in touched:
                    raise SchemaDrift(drift)
                continue
            if known is not None and not drift and not (register or type_id in order.migrate):
                versions[type_id] = known.version_id  # another hash for the same type
                continue
            ref = self._next_ref(type_id, info, known, stored, changed=bool(drift))
            reason = "migrate" if type_id in order.migrate else "register"
            registered.append(Registered(type_id, ref, info.schema, reason))
            versions[type_id] = ref.version_id
        return Agreed(versions, registered)

    def _next_ref(
        self, type_id: TypeId, info: TypeInfo, known: SchemaRef | None, stored: Stored | None, *, changed: bool
    ) -> SchemaRef:
        ended = self.ledger.lives.get(type_id)
        if known is None and ended:
            # Versions count on over all lives: rows of an older one never seem to be of this one's schema.
            before = max(ended[-1].version_id, stored.ref.version_id if stored is not None else 0)
            generation = self.ledger.generation_of(type_id) if self.ledger.head_of(type_id).files else 0
            following = self.ledger.commit_id + 1
            return SchemaRef(before + 1, info.schema_hash, generation or following, following)
        before = known.version_id if known is not None else stored.ref.version_id if stored is not None else 0
        version_id = before + 1 if changed or before == 0 else before
        following = self.ledger.commit_id + 1
        if known is not None:
            return SchemaRef(version_id, info.schema_hash, known.generation, following)
        # Rows that are there without a schema of ours on the chain are a plain writer's, and stay.
        adopted = self.ledger.head_of(type_id).files > 0
        return SchemaRef(version_id, info.schema_hash, 0 if adopted else following, following)

    async def _stored_schema(self, type_id: TypeId, known: SchemaRef | None) -> Stored | None:
        """The document of the schema that the ledger names; or, if it names none, what a plain writer registered."""
        wanted = (type_id, known)
        if wanted not in self._stored:
            self._stored[wanted] = (
                await catalog.stored_schema(self._store, type_id)
                if known is None
                else await catalog.chained_schema(self.chain, self.ledger, type_id, known)
            )
        return self._stored[wanted]


def _another_life(head: Head, known: Head) -> Corrupt:
    return Corrupt(
        f"{layout.HEAD}: commit {head.commit_id} does not follow from commit {known.commit_id}, which was there before",
        remedy="the store was restored or made anew: open a new session",
    )
