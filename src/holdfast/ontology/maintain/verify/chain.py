"""Checks of the chain of manifests: every manifest is read once, and compared with the manifests before it.

Where a manifest is missing or broken, the walk continues at the latest older commit that a skip pointer names. Without
one the chain below is unknown, and attempts at those commits are not reported as orphans. ``compare`` then goes from
the oldest manifest to the newest: what a summary of ours says of all earlier commits must follow from those commits.
"""

import hashlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from holdfast.base.aio import stream_bounded
from holdfast.base.audit import Finding
from holdfast.base.errors import Corrupt, Incompatible, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.chainstate import EMPTY, Ledger, followed
from holdfast.ontology.format.head import Head
from holdfast.ontology.format.layout import HEAD
from holdfast.ontology.format.manifest import Manifest, Summary, parse
from holdfast.ontology.format.schema_objects import Dropped
from holdfast.ontology.maintain.verify.rules import finding
from holdfast.ontology.types.refs import UNTOUCHED, FileRef, Place, TypeHead, TypeId, fold

PARALLEL = 32


class ReadManifest(NamedTuple):
    manifest: Manifest
    """Without its list of recent files, which would take most of the memory."""
    recent: str
    """The digest of that list."""


@dataclass
class ChainCheck:
    manifests: list[Manifest] = field(default_factory=list)
    """The manifests of the chain, newest first."""
    recents: dict[str, str] = field(default_factory=dict)
    """The digest of the list of recent files of each manifest, by path."""
    findings: list[Finding] = field(default_factory=list)
    gaps: list[tuple[int, int]] = field(default_factory=list)
    """The first and the last commit of each part of the chain that is unknown."""

    @property
    def whole(self) -> bool:
        return not self.gaps

    @property
    def paths(self) -> set[str]:
        return {manifest.path for manifest in self.manifests}

    def knows(self, commit_id: int) -> bool:
        return not any(first <= commit_id <= last for first, last in self.gaps)


async def walk(
    store: Store, head: Head, attempts: Mapping[int, Sequence[str]], report: Callable[[int], None]
) -> ChainCheck:
    """Follow the chain from ``head``. ``attempts`` are the paths of the listed manifests, by their commit."""
    listed = [path for commit_id in sorted(attempts) if commit_id <= head.commit_id for path in attempts[commit_id]]
    known: dict[str, ReadManifest | Finding] = {}

    async def read(path: str) -> tuple[str, ReadManifest | Finding]:
        return path, await _read(store, path)

    async for path, found in stream_bounded(listed, read, limit=PARALLEL):
        known[path] = found
        report(len(known))
    check = ChainCheck()
    skips: Sequence[Place] = ()
    place = head.place
    while place is not None:
        found = known[place.path] if place.path in known else await _read(store, place.path)
        if isinstance(found, ReadManifest) and (fault := _misplaced(found.manifest, place)) is not None:
            above = check.manifests[-1].path if check.manifests else HEAD
            found = finding("chain_break", above, fault)
        if isinstance(found, Finding):
            check.findings.append(found)
            last = place.commit_id
            place = max((skip for skip in skips if skip.commit_id < last), default=None)
            check.gaps.append((1 if place is None else place.commit_id + 1, last))
            continue
        manifest = found.manifest
        check.manifests.append(manifest)
        check.recents[manifest.path] = found.recent
        if manifest.summary is not None:
            skips = manifest.summary.skips
        place = manifest.parent
    if check.whole:
        plain = any(manifest.summary is None for manifest in check.manifests)
        check.findings += compare(check, await Chain(store).dropped() if plain else Dropped())
    return check


async def _read(store: Store, path: str) -> ReadManifest | Finding:
    try:
        manifest = parse((await store.get(path)).body, path)
    except NotFound:
        return finding("manifest_missing", path, "the chain names this manifest, and it is missing")
    except (Corrupt, Incompatible) as error:
        return finding("manifest_unreadable", path, str(error))
    if manifest.summary is None:
        return ReadManifest(manifest, "")
    slim = replace(manifest, summary=replace(manifest.summary, recent=()))
    return ReadManifest(slim, _digest(manifest.summary.recent))


def _misplaced(manifest: Manifest, place: Place) -> str | None:
    """Why a manifest cannot be the one of this commit. Numbers fall along a chain, so that it cannot be circular."""
    if manifest.commit_id != place.commit_id:
        return f"it names {place.path} for commit {place.commit_id}, which is commit {manifest.commit_id}"
    return None


# --- summaries against the commits before them ---


def compare(check: ChainCheck, dropped: Dropped) -> Iterator[Finding]:
    ledger, recent = EMPTY, list[FileRef]()
    for manifest in reversed(check.manifests):
        if manifest.created_at and manifest.created_ns < ledger.created_ns:
            message = f"commit {manifest.commit_id} by {manifest.runtime_id} is dated before its parent"
            yield finding("time_backwards", manifest.path, message)
        recent += manifest.refs
        after = followed(ledger, manifest, dropped)
        if (summary := manifest.summary) is not None:
            fault = _fault(ledger, manifest, summary, after)
            if fault is None and check.recents[manifest.path] != _digest(recent):
                fault = "its list of recent files is not that of the commits before it"
            if fault is not None:
                yield finding("summary_wrong", manifest.path, fault)
            if summary.full:
                recent.clear()
        ledger = after


def _fault(ledger: Ledger, manifest: Manifest, summary: Summary, after: Ledger) -> str | None:
    """What contradicts the commits before this one, which ``ledger`` follows from; ``after`` includes this one."""
    if summary.base != ledger.base:
        return f"its base is {summary.base}, and the latest full manifest is {ledger.base}"
    if summary.skips != ledger.spine:
        return "its skip pointers do not lead to the commits before it"
    for type_id in {*ledger.heads, *after.heads}:
        expected = _expected_head(ledger, manifest, summary, type_id)
        if expected is not None and after.head_of(type_id) != expected:
            return f"it does not agree with the commits before it on the files of {type_id.label}"
    return None


def _expected_head(ledger: Ledger, manifest: Manifest, summary: Summary, type_id: TypeId) -> TypeHead | None:
    """The type's head after this commit; None where the commit ends the type's life."""
    gone = type_id in summary.schemas and summary.schemas[type_id] is None
    # The drop by a plain writer before this commit may have left no other trace than the lives in this summary.
    lives = summary.lives.get(type_id)
    if gone or (lives is not None and lives != ledger.lives.get(type_id)):
        return None
    renewed = any(each.type_id == type_id and each.ref.generation == manifest.commit_id for each in manifest.registered)
    before = UNTOUCHED if renewed else ledger.head_of(type_id)
    return fold(before, (ref for ref in manifest.refs if ref.type_id == type_id))


def _digest(refs: Iterable[FileRef]) -> str:
    text = "\n".join(f"{ref.commit_id} {ref.type_id.label} {ref.path}" for ref in refs)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
