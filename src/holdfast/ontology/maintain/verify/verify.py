"""Verify: everything that a store holds against everything else. Reads only, and goes on after every finding.

Shallow, it reads the manifests, the indexes and the listings; deep, every data file and every snapshot too. The chain
is the judge: files against manifests, indexes against the chain, snapshots against the commits that they stand for.
Where the chain itself is broken, what depends on the lost part is not judged.

Objects under other prefixes than the ontology's are not looked at: a bucket holds more than one thing.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.errors import Corrupt, HoldfastError, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.footer import REDACTED
from holdfast.ontology.format.data.stored_rows import mark_of
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.format.index import Entry, read_index
from holdfast.ontology.format.manifest import REDACTS, FileEntry
from holdfast.ontology.format.redactions import finished
from holdfast.ontology.maintain.leftovers import leftovers, staged_loads
from holdfast.ontology.maintain.verify.chain import ChainCheck, walk
from holdfast.ontology.maintain.verify.derived import Truth, check_index, check_schemas
from holdfast.ontology.maintain.verify.files import check_data, check_snapshot, looked_at
from holdfast.ontology.maintain.verify.findings import Finding, Report, by_weight
from holdfast.ontology.types.refs import FileRef, Place, TypeId

PARALLEL = 16
TRIES = 3
SMALLEST = 12
"""Bytes of the shortest thing that could be a Parquet file."""


class Stage(NamedTuple):
    """How far a check has come."""

    name: str
    done: int
    total: int


STAGES = ("listing", "manifests", "files", "indexes", "snapshots")
Watch = Callable[[Stage], None]


@dataclass
class _Run:
    store: Store
    deep: bool
    watch: Watch
    head: Head = field(default_factory=Head)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of everything under the ontology's prefixes."""
    findings: list[Finding] = field(default_factory=list)
    checked: Counter[str] = field(default_factory=Counter)
    digests: dict[TypeId, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    redacted: Place | None = None
    """The latest commit that destroys payload."""
    marked: bool = False
    """A file that lost payload is not what was said of it."""

    def add(self, kind: str, key: str, message: str) -> None:
        self.findings.append(Finding(kind, key, message))

    def report(self) -> Report:
        return Report(self.head.commit_id, by_weight(self.findings), self.checked)


async def verify(store: Store, *, deep: bool = False, watch: Watch | None = None) -> Report:
    """Check the whole store. Errors are raised only where the store cannot be read at all.

    A check that payload is destroyed under compares files with what was said of them before: it is done again.
    """
    run = await _verified(store, deep=deep, watch=watch)
    for _ in range(TRIES - 1):
        if run.report().good or not await _overtaken(run):
            break
        run = await _verified(store, deep=deep, watch=watch)
    return run.report()


async def _overtaken(run: _Run) -> bool:
    """Whether what is wrong may only seem so: a file was rewritten after its manifest was read."""
    try:
        return (
            run.marked or (await Chain(run.store).ledger((await read_head(run.store)).place)).redacted != run.redacted
        )
    except Corrupt:
        return False


async def _verified(store: Store, *, deep: bool, watch: Watch | None) -> _Run:
    run = _Run(store, deep, watch if watch is not None else lambda _: None)
    if not await _read_head(run):
        return run
    await _list(run)
    if await _lost_head(run):
        return run
    check = await _walk(run)
    run.findings += check.findings
    await _check_files(run, check)
    run.findings += _strangers(run, check)
    run.findings += await _check_redactions(run, check)
    ledger = await _ledger(run, check)
    if ledger is not None:
        await _check_indexes(run, check, ledger)
        run.findings += await check_schemas(store, ledger)
        run.findings += await _check_leftovers(run)
    return run


async def verify_indexes(store: Store, *, watch: Watch | None = None) -> Report:
    """The indexes alone, and the snapshots that they name. ``Corrupt`` if the chain cannot be followed."""
    run = _Run(store, deep=False, watch=watch if watch is not None else lambda _: None)
    run.head = await read_head(store)
    chain = Chain(store)
    ledger = await chain.ledger(run.head.place)
    files = await chain.files(0, run.head.place, checkpoints=False)
    for prefix in (layout.SNAPSHOTS, layout.INDICES):
        await _list_prefix(run, prefix)
    types = sorted({*ledger.heads, *ledger.schemas})
    for number, type_id in enumerate(types):
        run.watch(Stage("indexes", number, len(types)))
        run.findings += await check_index(store, Truth.of(ledger, type_id, files), run.sizes.__contains__)
        run.checked["indexes"] += 1
    run.findings += _indexes_of_no_type(run, types)
    return run.report()


# --- head, listing, chain ---


async def _read_head(run: _Run) -> bool:
    try:
        run.head = await read_head(run.store)
    except Corrupt as error:
        run.add("head_unreadable", layout.HEAD, str(error))
        return False
    if await run.store.find(layout.ENGINE) is not None:
        run.add(
            "other_engine", layout.ENGINE, "another engine has written its mark: it may use the layout in another way"
        )
    return True


async def _lost_head(run: _Run) -> bool:
    """Whether there are commits and no head. An attempt at the first one may be under way."""
    last = max(_listed(run), default=0)
    made = last > 1 or (last == 1 and any(key.startswith(layout.INDICES) for key in run.sizes))
    if run.head.version is not None or not made or await run.store.find(layout.HEAD) is not None:
        return False
    run.add("head_missing", layout.HEAD, f"commits up to {last} are there, and no head leads to them")
    return True


async def _list(run: _Run) -> None:
    for prefix in (layout.COMMITS, layout.SNAPSHOTS, layout.INDICES):
        await _list_prefix(run, prefix)
    run.checked["objects"] = len(run.sizes)


async def _list_prefix(run: _Run, prefix: str) -> None:
    async for page in run.store.list(prefix):
        run.sizes.update((entry.key, entry.size) for entry in page.entries)
        run.watch(Stage("listing", len(run.sizes), 0))


def _listed(run: _Run) -> dict[int, list[str]]:
    """Manifests by the number of their commit."""
    attempts: dict[int, list[str]] = defaultdict(list)
    for key in run.sizes:
        place = layout.commit_of_manifest(key)
        if place is not None:
            attempts[place].append(key)
    return attempts


async def _walk(run: _Run) -> ChainCheck:
    total = run.head.commit_id
    check = await walk(run.store, run.head, _listed(run), lambda done: run.watch(Stage("manifests", done, total)))
    run.checked["commits"] = len(check.manifests)
    return check


async def _ledger(run: _Run, check: ChainCheck) -> Ledger | None:
    """Without a whole chain nothing can be said of what is derived from it."""
    if not check.whole or any(found.kind == "summary_wrong" for found in check.findings):
        return None
    try:
        return await Chain(run.store).ledger(run.head.place)
    except HoldfastError as error:
        run.add("chain_break", run.head.manifest_path or layout.HEAD, str(error))
        return None


# --- files ---


async def _check_files(run: _Run, check: ChainCheck) -> None:
    named = [(manifest.commit_id, entry) for manifest in check.manifests for entry in manifest.files]
    there: list[tuple[int, FileEntry]] = []
    for commit_id, entry in named:
        size = run.sizes.get(entry.path)
        if size is None and not await _exists(run.store, entry.path):
            run.add("file_missing", entry.path, f"commit {commit_id} names it for {entry.type_id.label}")
        elif size is not None and size < SMALLEST:
            run.add("file_truncated", entry.path, f"it has {size} bytes, which is too short for any file")
        else:
            there.append((commit_id, entry))
    run.checked["files"] = len(named)
    if not run.deep:
        return

    async def read(item: tuple[int, FileEntry]) -> tuple[int, FileEntry, list[Finding], bytes | None]:
        commit_id, entry = item
        try:
            body = (await run.store.get(entry.path)).body
        except NotFound:
            return commit_id, entry, [Finding("file_missing", entry.path, "it has just vanished")], None
        findings, digest = await blocking(check_data, body, entry, commit_id)
        mark = mark_of(body, entry.path) if findings and body.endswith(b"PAR1") else 0
        if mark in ordered:
            findings = []  # its manifest is written next; that the redaction is unfinished is a finding of its own
        run.marked |= bool(findings and mark)
        return commit_id, entry, findings, digest

    ordered = {
        manifest.commit_id
        for manifest in check.manifests
        if REDACTS in manifest.extra and not await finished(run.store, manifest.place)
    }

    done = 0
    async for commit_id, entry, findings, digest in stream_bounded(there, read, limit=PARALLEL):
        run.findings += findings
        if digest is not None:
            run.digests[entry.type_id][commit_id] = digest
        done += 1
        run.watch(Stage("files", done, len(there)))


async def _check_redactions(run: _Run, check: ChainCheck) -> list[Finding]:
    """Commits that order payload to be destroyed, and have no record that it was; and what was staged."""
    found: list[Finding] = []
    for manifest in check.manifests:
        if REDACTS in manifest.extra:
            run.checked["redactions"] += 1
            run.redacted = max(filter(None, (run.redacted, manifest.place)))
            if not await finished(run.store, manifest.place):
                message = f"commit {manifest.commit_id} orders payload to be destroyed, and no record says that it was"
                found.append(Finding("redaction_unfinished", manifest.path, message))
    for each in await staged_loads(run.store):
        message = f"{len(each.keys)} objects, {each.size} bytes, of a bulk load that is under way or was killed"
        found.append(Finding("staged_load", layout.load_prefix(each.load), message))
    return found


async def _check_leftovers(run: _Run) -> list[Finding]:
    """Garbage that holds payload which was ordered to be destroyed."""
    try:
        found = await leftovers(run.store)
    except Corrupt:
        return []  # a chain that cannot be followed is a finding of its own
    return [
        Finding(
            "erased_payload",
            each.key,
            f"it has rows of {each.ordered.redaction.type_id.label} that commit {each.ordered.place.commit_id} "
            "ordered to be destroyed, and nothing names it",
        )
        for each in found
    ]


async def _exists(store: Store, key: str) -> bool:
    """For files outside the listed prefixes, where a plain writer may have put them."""
    if key.startswith(layout.COMMITS):
        return False
    try:
        await store.head(key)
    except NotFound:
        return False
    return True


def _strangers(run: _Run, check: ChainCheck) -> Iterator[Finding]:
    """What lies under ``commits/`` and is not on the chain."""
    on_chain = {path.removesuffix("manifest.json") for path in check.places}
    named = {entry.path for manifest in check.manifests for entry in manifest.files} | check.places
    attempts: dict[str, int] = {}
    for key in run.sizes:
        if not key.startswith(layout.COMMITS) or key in named:
            continue
        folder = layout.folder_of(key)
        commit_id = layout.commit_of_folder(folder) if folder is not None else None
        if folder is None or commit_id is None:
            yield Finding("foreign_object", key, "nothing of an ontology has such a key")
        elif folder in on_chain:
            yield Finding("foreign_object", key, f"no manifest names it, and it lies with commit {commit_id}")
        else:
            attempts[folder] = commit_id
    for folder, commit_id in attempts.items():
        if commit_id > run.head.commit_id + 1:
            yield Finding(
                "orphan_attempt", folder, f"no writer can be at commit {commit_id} after {run.head.commit_id}"
            )
        elif commit_id > run.head.commit_id:
            yield Finding("open_attempt", folder, f"an attempt at commit {commit_id}, which is still to come")
        elif check.knows(commit_id):
            yield Finding("orphan_attempt", folder, f"an attempt at commit {commit_id} that lost")


# --- indexes and snapshots ---


async def _check_indexes(run: _Run, check: ChainCheck, ledger: Ledger) -> None:
    files = [ref for manifest in reversed(check.manifests) for ref in manifest.refs]
    types = sorted({*ledger.heads, *ledger.schemas})
    named: dict[str, tuple[TypeId, Entry]] = {}
    done = 0

    async def one(type_id: TypeId) -> None:
        nonlocal done
        truth = Truth.of(ledger, type_id, files)
        run.findings.extend(await check_index(run.store, truth, run.sizes.__contains__))
        for entry in (await read_index(run.store, type_id)).entries:
            if entry.snapshot:
                named[entry.path] = (type_id, entry)
        done += 1
        run.watch(Stage("indexes", done, len(types)))

    await map_bounded(types, one, limit=PARALLEL)
    run.checked["indexes"] = len(types)
    run.findings += _indexes_of_no_type(run, types)
    run.findings += _loose_snapshots(run, named)
    run.checked["snapshots"] = len(named)
    if run.deep:
        await _check_snapshots(run, named, files)


def _indexes_of_no_type(run: _Run, types: list[TypeId]) -> Iterator[Finding]:
    expected = {layout.index_key(*type_id) for type_id in types}
    for key in run.sizes:
        if key.startswith(layout.INDICES) and key not in expected:
            yield Finding("index_of_no_type", key, "the chain knows no such type")


def _loose_snapshots(run: _Run, named: Mapping[str, object]) -> Iterator[Finding]:
    for key in run.sizes:
        if key.startswith(layout.SNAPSHOTS) and key not in named:
            if layout.commits_of_snapshot(key) is None:
                yield Finding("foreign_object", key, "nothing of an ontology has such a key")
            else:
                yield Finding("orphan_snapshot", key, "no index names it: superseded, or never published")


async def _check_snapshots(run: _Run, named: Mapping[str, tuple[TypeId, Entry]], files: Sequence[FileRef]) -> None:
    for number, (path, (type_id, entry)) in enumerate(named.items()):
        found = await run.store.find(path) if path in run.sizes else None
        if found is not None:  # it may have been superseded just now
            body, expected = found.body, run.digests.get(type_id, {})
            own = [ref for ref in files if ref.type_id == type_id]
            after = [await run.store.find(ref.path) for ref in await blocking(looked_at, body, path, entry, own)]
            later = [each.body for each in after if each is not None]
            later = later if len(later) == len(after) else []  # one that is missing is a finding of its own
            wrong = await blocking(lambda *args: list(check_snapshot(*args)), body, entry, type_id, expected, later)
            run.marked |= bool(wrong and REDACTED in body)
            run.findings += wrong
        run.watch(Stage("snapshots", number + 1, len(named)))
