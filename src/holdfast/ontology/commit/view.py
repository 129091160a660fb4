"""A session's view of the store at one head: the ledger, the state of each type, the schemas.

The head only moves forward along one chain. A head that is not a descendant of the known one means that the store was
restored or created again under a living session: ``Corrupt``, because nothing that the session knows is valid any more.

``Overtaken`` where payload was destroyed after the known head: move to the current head.
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
from holdfast.ontology.format.chainstate import Ledger, followed
from holdfast.ontology.format.data.batch import Change, Identity, Row
from holdfast.ontology.format.data.stored_rows import read_rows
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.format.manifest import Manifest, Registered
from holdfast.ontology.types.errors import SchemaDrift, TypeDropped
from holdfast.ontology.types.refs import FileRef, Place, SchemaRef, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo


@dataclass(frozen=True, slots=True)
class Agreed:
    """The schema versions of a commit, and those that it introduces."""

    versions: Mapping[TypeId, int]
    registered: Sequence[Registered]


class View(KnownHead):
    def __init__(self, store: Store) -> None:
        super().__init__(store)
        self._store = store
        self._states: dict[TypeId, TypeState] = {}
        self._known_until: dict[TypeId, int] = {}
        """Types of whose end this session knows up to another commit than the first that it read."""
        self._schemas: dict[tuple[TypeId, SchemaRef | None, Place | None], Stored | None] = {}

    async def move_to(self, head: Head) -> None:
        if self.known and head == self.head:
            return
        before = self.latest
        if before is not None and head.commit_id < before.commit_id:
            head = await read_head(self._store)  # a query of this session may have read a later one meanwhile
        if before is not None and head.commit_id < before.commit_id:
            raise _not_a_descendant(head, before)
        ledger = await self.chain.ledger(head.place, self.ledger)
        if before is not None and await self.chain.at(ledger.place, before.commit_id) != before:
            raise _not_a_descendant(head, before)
        self._set(head, ledger)

    def _set(self, head: Head, ledger: Ledger) -> None:
        if ledger.redacted != self.ledger.redacted:
            self._states.clear()  # they may have rows that were destroyed
        self.head, self.ledger, self.known = head, ledger, True
        self.note(head)

    async def look_again(self) -> bool:
        """Whether ``dropped.json`` ends more types than before: a plain writer writes it after the head."""
        if not self.ledger.foreign:
            return False
        ledger = await self.chain.ledger(self.head.place)
        ended = {each: lives for each, lives in ledger.lives.items() if lives != self.ledger.lives.get(each)}
        self._known_until |= {each: lives[-1].end - 1 for each, lives in ended.items()}
        self._set(self.head, ledger)
        return bool(ended)

    def advance(self, head: Head, version: Version, manifest: Manifest, rows: Mapping[TypeId, Sequence[Row]]) -> None:
        """Apply a commit of this session, which is on the chain."""
        for type_id, ref in (manifest.summary.schemas if manifest.summary is not None else {}).items():
            if ref is None:
                self._states.pop(type_id, None)
                self._known_until[type_id] = manifest.commit_id  # it was dropped here, so it may begin again here
            elif type_id in self._states:
                self._states[type_id].generation = ref.generation
        for type_id in manifest.touched - set(rows):
            self._states.pop(type_id, None)  # a bulk load, whose rows are not in memory
        for type_id, written in rows.items():
            self._states[type_id].committed(written, manifest.commit_id)
        for state in self._states.values():
            if state.commit_id == self.ledger.commit_id:
                state.commit_id = manifest.commit_id  # the commit did not touch the type
        self.head = replace(head, version=version)
        self.ledger = followed(self.ledger, manifest)
        self.note(self.head)
        self.chain.remember(manifest)

    # --- current rows ---

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
        """The rows of these changes. A retraction keeps the fields that the object had."""
        gone = {change.identity for change in changes if change.fields_json is None}
        kept = await self._fields(type_id, gone) if gone else {}
        return [
            Row(change.identity, kept[change.identity], retracted=True)
            if change.fields_json is None
            else Row(change.identity, change.fields_json)
            for change in changes
        ]

    async def _fields(self, type_id: TypeId, identities: set[Identity]) -> dict[Identity, str]:
        """The current ``fields_json`` of these identities."""
        state = await self._state(type_id)
        found = {identity: state.get(identity) for identity in identities}
        commits = {identity: current.commit_id for identity, current in found.items() if current is not None}
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

        texts = await with_files(self._store, self.chain, self.ledger, type_id, read, fence)
        check(texts.keys() == identities, f"{type_id.label}: rows of {len(identities - texts.keys())} keys are missing")
        return texts

    # --- schemas ---

    def changed_by(self, order: Order, schemas: Agreed) -> bool:
        """Whether an order would change anything, apart from rows."""
        ends = any(self._ends_anything(each, purge=purge) for each, purge in order.drop.items())
        return bool(schemas.registered) or ends or order.redact is not None or order.bulk is not None

    def _ends_anything(self, type_id: TypeId, *, purge: bool) -> bool:
        ledger = self.ledger
        live = type_id in ledger.schemas or ledger.head_of(type_id).files > 0
        return live or (purge and any(not life.purged for life in ledger.lives.get(type_id, ())))

    def _check_life(self, type_id: TypeId) -> None:
        """``TypeDropped`` for a type that ended after this session first read the store."""
        ended = self.ledger.lives.get(type_id)
        if ended and ended[-1].end > self._known_until.get(type_id, self.first or 0):
            raise TypeDropped(f"{type_id.label} was dropped by commit {ended[-1].end}, and this session is older")

    async def agree(self, types: Mapping[TypeId, TypeInfo], touched: Collection[TypeId], order: Order) -> Agreed:
        """The schema version that each type is written under.

        A type that the store does not know is registered. A touched type whose stored schema differs is
        ``SchemaDrift``. With ``register``, a schema that can read all that is stored becomes the next version; a type
        that is migrated gets its schema in any case. ``TypeDropped`` for a touched type that has ended meanwhile.
        """
        versions: dict[TypeId, int] = {}
        registered: list[Registered] = []
        for type_id, info in types.items():
            if type_id in order.drop:
                continue
            known, wanted = self.ledger.schemas.get(type_id), order.register or type_id in touched
            if wanted:
                self._check_life(type_id)
            elif type_id in self.ledger.lives if known is None else known.plain:
                continue  # dropped, or migrated by a plain writer, and not asked for
            if known is not None and known.hash == info.schema_hash and not (wanted and self.ledger.foreign):
                versions[type_id] = known.version_id
                continue
            stored = await self._stored_schema(type_id, known)
            dropped = known is None and type_id in self.ledger.lives and not self.ledger.head_of(type_id).files
            drift = info.drift(stored.schema) if stored is not None and not dropped else None
            if drift and not ((order.register and drift.additive) or type_id in order.migrate):
                if wanted:
                    raise SchemaDrift(drift)
                continue
            if known is not None and stored is not None and not drift:
                versions[type_id] = stored.ref.version_id  # the hash may differ, and the type is the same
                continue
            reason = "migrate" if type_id in order.migrate else "register"
            ref, schema = self._next_ref(type_id, known), info.schema
            if stored is not None and not dropped and not drift:  # adopted as a plain writer has registered it
                ref, schema = ref._replace(version_id=stored.ref.version_id, hash=stored.ref.hash), stored.schema
            else:
                before = max(ref.version_id, stored.ref.version_id if stored is not None else 0)
                ref = ref._replace(version_id=before + 1, hash=info.schema_hash)
            introduced = Registered(*type_id, ref.version_id, ref.hash, ref.generation, ref.since, schema, reason)
            registered.append(introduced)
            versions[type_id] = ref.version_id
        return Agreed(versions, registered)

    def _next_ref(self, type_id: TypeId, known: SchemaRef | None) -> SchemaRef:
        """A reference to a schema that the next commit introduces; its version is the last one before it.

        Versions continue over all lives of a type, so that rows of an older life never seem to have the present schema.
        Rows without a schema of ours on the chain are a plain writer's, and stay.
        """
        ledger, ended = self.ledger, self.ledger.lives.get(type_id)
        following = ledger.commit_id + 1
        begun = known is not None or ledger.head_of(type_id).files > 0
        last = known.version_id if known is not None else ended[-1].version_id if ended else 0
        return SchemaRef(last, "", ledger.generation_of(type_id) if begun else following, following)

    async def _stored_schema(self, type_id: TypeId, known: SchemaRef | None) -> Stored | None:
        """The schema that the ledger names, or a plain writer's.

        A plain writer's counts where the chain has none, and where a plain writer has committed since our last commit,
        because then it may have migrated the type.
        """
        wanted = (type_id, known, self.ledger.place if self.ledger.foreign else None)
        if wanted not in self._schemas:
            self._schemas[wanted] = await self._read_schema(type_id, known)
        return self._schemas[wanted]

    async def _read_schema(self, type_id: TypeId, known: SchemaRef | None) -> Stored | None:
        if known is None:
            return await catalog.stored_schema(self._store, type_id)
        if known.plain:
            return await catalog.migrated_schema(self._store, type_id, known)
        latest = await catalog.stored_schema(self._store, type_id) if self.ledger.foreign else None
        if latest is not None and latest.ref.version_id > known.version_id:
            return latest
        return await catalog.chained_schema(self.chain, self.ledger, type_id, known)


def _not_a_descendant(head: Head, known: Place) -> Corrupt:
    return Corrupt(
        f"{layout.HEAD}: commit {head.commit_id} does not follow from commit {known.commit_id}, which was there before",
        remedy="the store was restored or created again: open a new session",
    )
