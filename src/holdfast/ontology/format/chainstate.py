"""Ledger: everything that the chain says as of one commit and that the next manifest must repeat. Pure.

It is read from one manifest of ours (and the ``base`` that it names), brought forward over later manifests, including
plain ones, and gives the ``Summary`` of the next manifest. So a session with a ledger composes a manifest without
reading anything, whatever the length of the history.

Manifests of a plain writer have no lives and no schema map. Its drops and migrations are commits too:

* A drop is a commit without files. ``dropped.json`` then names the type, the commit and whether its rows are purged,
  until the type is registered again. The manifest keeps the writer's own note: ``{"operation": "schema_drop",
  "affected_types": "[{kind, type_name}, ...]"}``. A drop that ``dropped.json`` lacks (it was cleared, or is not written
  yet) counts as a purge, because this writer drops types with rows only with a purge.
* A migration is a commit whose files, or whose note ``{"kind": "migration", "migrated_types": [...]}``, have a later
  version than the chain knows. The schema itself is in ``versions/``, which is written after the head.

Both apply from their commit on, like those of our own manifests.
"""

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.base.errors import NotFound, check
from holdfast.ontology.format.manifest import Manifest, Registered, Summary
from holdfast.ontology.format.schema_objects import Dropped
from holdfast.ontology.format.stats import FileStats
from holdfast.ontology.types.refs import (
    UNTOUCHED,
    FileRef,
    Life,
    Place,
    Position,
    SchemaRef,
    TypeHead,
    TypeId,
    fold,
)
from holdfast.ontology.types.refs import type_id as checked_type_id

T = TypeVar("T")

NOTHING_DROPPED = Dropped()
FULL_EVERY = 64
"""A manifest whose number is a multiple of this is full."""
RECENT_LIMIT = 512
"""A manifest that would otherwise list more recent files than this is full too."""


@dataclass(frozen=True, slots=True)
class Ledger:
    place: Place | None = None
    created_ns: int = 0
    spine: tuple[Place, ...] = ()
    """The skips of the next manifest."""
    base: Place | None = None
    """The latest full manifest, this one included."""
    recent: tuple[FileRef, ...] = ()
    """The files of all commits after ``base``."""
    stats: Mapping[str, FileStats] = field(default_factory=dict)
    """Statistics of ``recent``, by path."""
    heads: Mapping[TypeId, TypeHead] = field(default_factory=dict)
    schemas: Mapping[TypeId, SchemaRef] = field(default_factory=dict)
    lives: Mapping[TypeId, tuple[Life, ...]] = field(default_factory=dict)
    """The ended lives of each type, oldest first."""
    redacted: Place | None = None
    """The latest commit that destroyed payload."""
    sinks: Mapping[str, Position] = field(default_factory=dict)
    """The last committed batch of each source."""
    changed: frozenset[TypeId] = frozenset()
    """The types whose head or schema changed after ``base``."""
    foreign: bool = False
    """A plain writer has committed after ``base``."""
    outbox: Place | None = None
    """The latest manifest with an outbox, this one included."""

    @property
    def commit_id(self) -> int:
        return 0 if self.place is None else self.place.commit_id

    def head_of(self, type_id: TypeId) -> TypeHead:
        return self.heads.get(type_id, UNTOUCHED)

    def generation_of(self, type_id: TypeId) -> int:
        """The first commit of the type's present life."""
        ref, ended = self.schemas.get(type_id), self.lives.get(type_id)
        return ref.generation if ref is not None else ended[-1].end + 1 if ended else 0

    def life_at(self, type_id: TypeId, commit_id: int) -> Life | None:
        """The life that the type had at a commit, if it has ended since."""
        ended = self.lives.get(type_id, ())
        return next((life for life in ended if life.generation <= commit_id < life.end), None)

    def purged(self, type_id: TypeId, commit_id: int) -> bool:
        """Whether the rows that the type had at a commit were purged."""
        life = self.life_at(type_id, commit_id)
        return life is not None and life.purged


def fate(ledger: Ledger, name: str) -> NotFound | None:
    """The error for a type that was dropped; None if it never existed, or exists."""
    ended = {each: lives[-1] for each, lives in ledger.lives.items() if lives and name in (each.name, each.label)}
    if not ended or any(name in (each.name, each.label) for each in (*ledger.heads, *ledger.schemas)):
        return None
    type_id, life = max(ended.items(), key=lambda item: item[1].end)
    if life.purged:
        message = f"commit {life.end} dropped {type_id.name}, and its rows were purged from all of history"
        return NotFound(message, remedy="holdfast onto commits shows the commit, with its author and reason")
    return NotFound(
        f"commit {life.end} dropped {type_id.name}",
        remedy=f"read it as of an earlier moment, such as commit {life.end - 1}",
    )


EMPTY = Ledger()


def opened(manifest: Manifest, base: Manifest | None) -> Ledger:
    """The ledger as of a manifest of ours. ``base`` is the manifest that it names; a full one needs none."""
    summary = manifest.summary
    check(summary is not None, f"{manifest.path}: a plain manifest has no summary")
    if summary is None or summary.full:
        below: Ledger = EMPTY
    elif base is None:
        check(summary.base is None, f"{manifest.path}: its base is needed")
        below = EMPTY
    else:
        check(base.place == summary.base, f"{manifest.path}: {base.path} is not its base")
        below = opened(base, None)
    return _overlaid(below, manifest)


def followed(ledger: Ledger, manifest: Manifest, dropped: Dropped = NOTHING_DROPPED) -> Ledger:
    """The ledger after one more commit, ours or a plain writer's. ``dropped``: the types that plain writers dropped."""
    check(manifest.parent == ledger.place, f"{manifest.path}: its parent is not {ledger.place}")
    if manifest.summary is not None:
        return _overlaid(ledger, manifest)
    heads, lives = dict(ledger.heads), dict(ledger.lives)
    for type_id in manifest.touched:
        heads[type_id] = fold(ledger.head_of(type_id), (ref for ref in manifest.refs if ref.type_id == type_id))
    schemas = {**ledger.schemas, **migrated_types(manifest, ledger.schemas)}
    ends = dropped_types(manifest, dropped)
    for type_id, purged in ends.items():
        lives[type_id] = ended(ledger, type_id, purged=purged)
        heads.pop(type_id, None)
        schemas.pop(type_id, None)
    return replace(
        ledger,
        place=manifest.place,
        created_ns=max(ledger.created_ns, manifest.created_ns),
        spine=next_spine(ledger.spine, manifest.place),
        recent=(*ledger.recent, *manifest.refs),
        heads=heads,
        schemas=schemas,
        lives={type_id: ended for type_id, ended in lives.items() if ended},
        changed=ledger.changed | manifest.touched | ends.keys(),
        foreign=True,
    )


def next_summary(
    ledger: Ledger,
    refs: Sequence[FileRef],
    attempt_id: str,
    registered: Iterable[Registered] = (),
    dropped: Mapping[TypeId, bool] | None = None,
    stats: Mapping[str, FileStats] | None = None,
    redacted: Place | None = None,
    sinks: Mapping[str, Position] | None = None,
) -> Summary:
    """Our fields of the next manifest, with these files and ``dropped`` types (and whether each is purged)."""
    commit_id = ledger.commit_id + 1
    heads: dict[TypeId, TypeHead | None] = dict(ledger.heads)
    schemas: dict[TypeId, SchemaRef | None] = dict(ledger.schemas)
    changed = set(ledger.changed)
    lives = dict(ledger.lives)
    for type_id, purged in (dropped or {}).items():
        lives[type_id] = ended(ledger, type_id, purged=purged)
        heads[type_id] = schemas[type_id] = None
        changed.add(type_id)
    for each in registered:
        if each.ref.generation == commit_id and ledger.head_of(each.type_id).files:
            heads[each.type_id] = None
        schemas[each.type_id] = each.ref
        changed.add(each.type_id)
    for type_id in {ref.type_id for ref in refs}:
        heads[type_id] = fold(heads.get(type_id) or UNTOUCHED, (ref for ref in refs if ref.type_id == type_id))
        changed.add(type_id)
    recent = (*ledger.recent, *refs)
    since = 0 if ledger.base is None else ledger.base.commit_id
    positions = {**ledger.sinks, **(sinks or {})}
    emptied = {ref.path for ref in ledger.recent if (dropped or {}).get(ref.type_id)}
    known = {path: each for path, each in ledger.stats.items() if path not in emptied}  # they contain keys
    known |= {path: each.short() for path, each in (stats or {}).items()}
    full = commit_id % FULL_EVERY == 0 or ledger.foreign or len(recent) > RECENT_LIMIT
    return Summary(
        attempt_id=attempt_id,
        full=full,
        base=ledger.base,
        skips=ledger.spine,
        recent=recent,
        recent_stats=tuple(known.get(ref.path) for ref in recent),
        type_heads=_live(heads) if full else {each: heads.get(each) for each in changed},
        schemas=_live(schemas) if full else {each: schemas.get(each) for each in changed},
        outbox_before=ledger.outbox,
        lives=lives if full else {each: lives[each] for each in changed if each in lives},
        redacted=redacted if redacted is not None else ledger.redacted,
        sinks={name: each for name, each in positions.items() if full or each.commit_id > since},
    )


def ended(ledger: Ledger, type_id: TypeId, *, purged: bool) -> tuple[Life, ...]:
    """The lives of a type after the next commit drops it. With ``purged`` earlier lives are purged, too."""
    before, ref = ledger.lives.get(type_id, ()), ledger.schemas.get(type_id)
    version_id = ref.version_id if ref is not None else before[-1].version_id if before else 0
    live = ref is not None or ledger.head_of(type_id).files > 0
    latest = (Life(ledger.generation_of(type_id), ledger.commit_id + 1, purged, version_id),) if live else ()
    return (*(life._replace(purged=life.purged or purged) for life in before), *latest)


def next_spine(spine: Iterable[Place], latest: Place) -> tuple[Place, ...]:
    """For every power of two the latest commit up to ``latest`` that it divides, newest first."""
    known = {place.commit_id: place for place in (*spine, latest)}
    found: dict[int, Place] = {}
    step = 1
    while step <= latest.commit_id:
        number = latest.commit_id // step * step
        if number in known:
            found[number] = known[number]
        step *= 2
    return tuple(found[number] for number in sorted(found, reverse=True))


def nearest(manifest: Manifest, commit_id: int) -> Place | None:
    """The earliest manifest that this one points to, from ``commit_id`` on."""
    skips = manifest.summary.skips if manifest.summary is not None else ()
    parent = () if manifest.parent is None else (manifest.parent,)
    return min((place for place in (*skips, *parent) if place.commit_id >= commit_id), default=None)


def _live(entries: Mapping[TypeId, T | None]) -> dict[TypeId, T | None]:
    return {type_id: entry for type_id, entry in entries.items() if entry is not None}


def _overlaid(below: Ledger, manifest: Manifest) -> Ledger:
    summary = manifest.summary
    if summary is None:
        return below
    heads = {} if summary.full else dict(below.heads)
    schemas = {} if summary.full else dict(below.schemas)
    for type_id, head in summary.type_heads.items():
        if head is None:
            heads.pop(type_id, None)
        else:
            heads[type_id] = head
    for type_id, ref in summary.schemas.items():
        if ref is None:
            schemas.pop(type_id, None)
        else:
            schemas[type_id] = ref
    lives = dict(summary.lives) if summary.full else {**below.lives, **summary.lives}
    return Ledger(
        place=manifest.place,
        created_ns=manifest.created_ns,
        spine=next_spine(summary.skips, manifest.place),
        base=manifest.place if summary.full else summary.base,
        recent=() if summary.full else summary.recent,
        stats={} if summary.full else summary.stats,
        heads=heads,
        schemas=schemas,
        lives=lives,
        redacted=summary.redacted,
        sinks=dict(summary.sinks) if summary.full else {**below.sinks, **summary.sinks},
        changed=frozenset() if summary.full else frozenset((*summary.type_heads, *summary.schemas)),
        outbox=manifest.place if manifest.outbox else summary.outbox_before,
    )


def dropped_types(manifest: Manifest, dropped: Dropped) -> Mapping[TypeId, bool]:
    """The types that a plain writer's commit drops, and whether they are purged."""
    found = dict.fromkeys(_drops_in_note(manifest), True)
    for kind, types in dropped.types.items():
        for name, record in types.items():
            if record.commit_id == manifest.commit_id:
                found[TypeId(kind, name)] = record.purged
    return found


def migrated_types(manifest: Manifest, schemas: Mapping[TypeId, SchemaRef]) -> Mapping[TypeId, SchemaRef]:
    """The types of ``schemas`` that a plain writer's commit migrates, with their new version."""
    versions: dict[TypeId, int] = {}
    for each, version in (
        *((entry.type_id, entry.schema_version_id) for entry in manifest.files),
        *_versions_in_note(manifest),
    ):
        versions[each] = max(version, versions.get(each, 0))
    return {
        each: ref._replace(version_id=versions[each], hash="", since=manifest.commit_id)
        for each, ref in schemas.items()
        if versions.get(each, 0) > ref.version_id
    }


def _drops_in_note(manifest: Manifest) -> Iterator[TypeId]:
    if manifest.files or manifest.metadata.get("operation") != "schema_drop":
        return
    try:
        listed = json.loads(str(manifest.metadata.get("affected_types")))
    except ValueError:
        return
    for each in _documents(listed):
        if each.get("kind") in ("entity", "relation"):
            yield checked_type_id(each["kind"], str(each.get("type_name")))


def _versions_in_note(manifest: Manifest) -> Iterator[tuple[TypeId, int]]:
    if manifest.metadata.get("kind") != "migration":
        return
    for each in _documents(manifest.metadata.get("migrated_types")):
        version = each.get("to_schema_version_id")
        if each.get("type_kind") in ("entity", "relation") and isinstance(version, int):
            yield checked_type_id(each["type_kind"], str(each.get("type_name"))), version


def _documents(listed: Any) -> Iterator[Mapping[str, Any]]:
    if isinstance(listed, list):
        yield from (each for each in listed if isinstance(each, Mapping))
