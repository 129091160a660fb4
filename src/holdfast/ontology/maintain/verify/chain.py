"""The chain of manifests under a check: every manifest once, newest first, whatever state the store is in.

Manifests are read in parallel, in the order of the listing, so that a long chain costs no round trip each. Where a
manifest is missing or broken the walk goes on at the next older one that a skip pointer names; if none does, the chain
below is unknown, and attempts down there are not called orphans. A second pass, oldest first, compares what our own
manifests say of all commits before them with those commits.
"""

import hashlib
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.base import codec
from holdfast.base.aio import stream_bounded
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import EMPTY, Ledger, followed
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.layout import HEAD
from holdfast.ontology.format.manifest import Manifest, parse
from holdfast.ontology.format.schema_objects import Dropped
from holdfast.ontology.maintain.verify.findings import Finding
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, Place, TypeId, fold

PARALLEL = 32


@dataclass
class ChainCheck:
    """What the walk has found out."""

    manifests: list[Manifest] = field(default_factory=list)
    """Those on the chain, newest first, without their lists of recent files."""
    recents: dict[str, str] = field(default_factory=dict)
    """The digest of each one's list."""
    findings: list[Finding] = field(default_factory=list)
    whole: bool = True
    """The chain was followed to its beginning, without a gap."""
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """From which commit to which it is not known what is on the chain."""

    @property
    def places(self) -> set[str]:
        return {manifest.path for manifest in self.manifests}

    def knows(self, commit_id: int) -> bool:
        return not any(first <= commit_id <= last for first, last in self.gaps)

    def add(self, kind: str, key: str, message: str) -> None:
        self.findings.append(Finding(kind, key, message))


async def walk(
    store: Store, head: Head, attempts: Mapping[int, list[str]], report: Callable[[int], None]
) -> ChainCheck:
    """Follow the chain from ``head``; ``attempts`` are the listed manifests by their number."""
    check = ChainCheck()
    reader = _Reader(store, head, attempts)
    visited: set[str] = set()
    skips: list[Place] = []
    place = head.place
    try:
        while place is not None:
            if place.path in visited:
                check.add("chain_cycle", check.manifests[-1].path, f"its parent {place.path} lies above it")
                check.whole = False
                check.gaps.append((1, check.manifests[-1].commit_id - 1))
                break
            visited.add(place.path)
            manifest = await reader.manifest(place, check)
            if manifest is None:
                check.whole = False
                last = place.commit_id
                place = max((skip for skip in skips if skip.commit_id < last), default=None)
                check.gaps.append((1 if place is None else place.commit_id + 1, last))
                continue
            if manifest.summary is not None:
                skips = [*manifest.summary.skips]
                check.recents[manifest.path] = _digest(manifest.summary.recent)
                manifest = replace(manifest, summary=replace(manifest.summary, recent=()))
            check.manifests.append(manifest)
            report(len(check.manifests))
            place = manifest.parent
    finally:
        await reader.close()
    plain = any(manifest.summary is None for manifest in check.manifests)
    dropped = await Chain(store).dropped() if plain else Dropped()
    check.findings += compare(check, dropped) if check.whole else ()
    return check


class _Reader:
    """Reads ahead along the listing; what the chain needs and the listing does not have is read on its own."""

    def __init__(self, store: Store, head: Head, attempts: Mapping[int, list[str]]) -> None:
        self._store = store
        numbers = sorted((number for number in attempts if number <= head.commit_id), reverse=True)
        self._ahead: AsyncIterator[tuple[str, bytes | None]] = stream_bounded(
            [path for number in numbers for path in attempts[number]], self._read, limit=PARALLEL
        )
        self._read_already: dict[str, bytes | None] = {}
        self._listed = {path for paths in attempts.values() for path in paths}

    async def manifest(self, place: Place, check: ChainCheck) -> Manifest | None:
        body = await self._body(place.path)
        if body is None:
            kind = "manifest_missing" if check.manifests else "head_without_manifest"
            key = place.path if check.manifests else HEAD
            check.add(kind, key, f"the chain names {place.path} for commit {place.commit_id}, and it is missing")
            return None
        try:
            manifest = parse(body, place.path)
        except (Corrupt, Incompatible) as error:
            kind, message = _broken(body, place.path, error)
            check.add(kind, place.path, message)
            return None
        if manifest.commit_id != place.commit_id:
            above = check.manifests[-1].path if check.manifests else HEAD
            lies_above = manifest.path in check.places or manifest.commit_id > place.commit_id
            kind = "chain_cycle" if lies_above else "chain_break"
            check.add(
                kind,
                above,
                f"commit {place.commit_id} should be {place.path}, which is commit {manifest.commit_id}",
            )
            return None
        return manifest

    async def _body(self, path: str) -> bytes | None:
        if path not in self._listed:
            return (await self._read(path))[1]
        while path not in self._read_already:
            found, body = await anext(self._ahead, (path, None))
            self._read_already[found] = body
            if found == path and body is None:
                break
        return self._read_already.pop(path, None) or (await self._read(path))[1]

    async def _read(self, path: str) -> tuple[str, bytes | None]:
        try:
            return path, (await self._store.get(path)).body
        except NotFound:
            return path, None

    async def close(self) -> None:
        closing: Any = self._ahead
        await closing.aclose()


def _broken(body: bytes, path: str, error: Exception) -> tuple[str, str]:
    """Whether a manifest that cannot be one leads upwards, or is just no manifest."""
    try:
        document = codec.decode(body, key=path)
        own, parent = document["commit_id"], document["parent_commit_id"]
        if isinstance(own, int) and isinstance(parent, int) and parent >= own:
            return "chain_cycle", f"commit {own} names commit {parent} as its parent"
    except (Corrupt, KeyError):
        pass
    return "manifest_unreadable", str(error)


# --- what manifests say of those before them ---


def compare(check: ChainCheck, dropped: Dropped) -> Iterator[Finding]:
    """Every summary against the files of the commits themselves, oldest first."""
    ledger, recent = EMPTY, list[FileRef]()
    for manifest in reversed(check.manifests):
        yield from _times(ledger, manifest)
        recent += manifest.refs
        if manifest.summary is not None:
            # Only the first fault is reported; later manifests repeat it.
            fault = _fault(ledger, manifest) or _recent_fault(check, manifest, recent)
            if fault is not None:
                yield Finding("summary_wrong", manifest.path, fault)
        ledger = followed(ledger, manifest, dropped)
        if manifest.summary is not None and manifest.summary.full:
            recent.clear()


def _times(ledger: Ledger, manifest: Manifest) -> Iterator[Finding]:
    if manifest.created_at and manifest.created_ns < ledger.created_ns:
        message = f"commit {manifest.commit_id} by {manifest.runtime_id} is dated before the one it follows"
        yield Finding("time_backwards", manifest.path, message)


def _fault(ledger: Ledger, manifest: Manifest) -> str | None:
    summary = manifest.summary
    if summary is None:
        return None
    if summary.base != ledger.base:
        return f"its base is {summary.base}, and the latest full manifest is {ledger.base}"
    if summary.skips != ledger.spine:
        return "its skip pointers do not lead to the commits below it"
    after = followed(ledger, manifest)
    for type_id in {*ledger.heads, *after.heads}:
        expected = _expected(ledger, manifest, type_id)
        if expected is not None and after.head_of(type_id) != expected:
            return f"it does not agree with the commits below it on the files of {type_id.label}"
    return None


def _expected(ledger: Ledger, manifest: Manifest, type_id: TypeId) -> Any:
    """What the type's head must be after this commit; None where the commit ends the type's life."""
    summary = manifest.summary
    gone = summary is not None and type_id in summary.schemas and summary.schemas[type_id] is None
    # A plain writer's drop below this commit may have left no other trace than here.
    lives = summary.lives.get(type_id) if summary is not None else None
    if gone or (lives is not None and lives != ledger.lives.get(type_id)):
        return None
    renewed = any(each.type_id == type_id and each.ref.generation == manifest.commit_id for each in manifest.registered)
    before = UNTOUCHED if renewed else ledger.head_of(type_id)
    return fold(before, (ref for ref in manifest.refs if ref.type_id == type_id))


def _recent_fault(check: ChainCheck, manifest: Manifest, recent: list[FileRef]) -> str | None:
    if check.recents[manifest.path] != _digest(recent):
        return "its list of recent files is not that of the commits below it"
    return None


def _digest(refs: Any) -> str:
    text = "\n".join(f"{ref.commit_id} {ref.type_id.label} {ref.path}" for ref in refs)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
