"""Verify: check everything that a store holds against the chain of manifests. Reads only, and continues after findings.

A shallow check reads manifests, indexes and listings; a deep one also every data file and every snapshot. Files are
compared with manifests, indexes with the chain, snapshots with the commits that they replace. Where the chain is
broken, what depends on the lost part is not judged. Other prefixes than the ontology's are not looked at.

Commits may be made during a check, and what they write would look wrong beside what was read before. So a check that
finds errors is repeated if the head has moved, and only errors of both passes are reported.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from holdfast.base.aio import blocking, map_bounded, stream_bounded
from holdfast.base.audit import Finding, Severity, Tally
from holdfast.base.errors import Corrupt, HoldfastError, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.chain.redaction_fence import RedactionFence, fence_of
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.stored_rows import mark_of
from holdfast.ontology.format.head import Head, read_head
from holdfast.ontology.format.index import Entry
from holdfast.ontology.format.manifest import REDACTS, FileEntry
from holdfast.ontology.maintain.leftovers import leftovers, staged_loads
from holdfast.ontology.maintain.verify.chain import ChainCheck, walk
from holdfast.ontology.maintain.verify.derived import Truth, check_index, check_schemas, exists
from holdfast.ontology.maintain.verify.files import check_data, check_snapshot
from holdfast.ontology.maintain.verify.rules import RULES, Report, by_severity, finding
from holdfast.ontology.types.refs import FileRef, TypeId

PARALLEL = 16
TRIES = 3
SMALLEST_PARQUET = 12
"""Bytes."""
STAGES = ("listing", "manifests", "files", "indexes", "snapshots")


class Stage(NamedTuple):
    """The progress of a check: one of ``STAGES``, and how many objects of how many."""

    name: str
    done: int
    total: int


Watch = Callable[[Stage], None]


@dataclass
class _Pass:
    store: Store
    watch: Watch
    head: Head = field(default_factory=Head)
    sizes: dict[str, int] = field(default_factory=dict)
    """Of every object under the ontology's prefixes, by key."""
    tally: Tally = field(default_factory=Tally)
    digests: dict[TypeId, dict[int, bytes]] = field(default_factory=lambda: defaultdict(dict))
    """The digest of the rows of each type and commit, as far as files were read."""

    def find(self, rule: str, key: str, message: str) -> None:
        self.tally.find(RULES[rule], key, message)

    @property
    def good(self) -> bool:
        return not any(each.severity is Severity.ERROR for each in self.tally.findings)

    @property
    def report(self) -> Report:
        return Report(self.head.commit_id, sorted(self.tally.findings, key=by_severity), self.tally.checked)


async def verify(store: Store, *, deep: bool = False, watch: Watch | None = None) -> Report:
    """Check the whole store. Errors are raised only where the store cannot be read at all."""
    watch = watch if watch is not None else lambda _: None
    found = await _verified(store, deep=deep, watch=watch)
    for _ in range(TRIES - 1):
        if found.good or not await _head_moved(found):
            break
        again = await _verified(store, deep=deep, watch=watch)
        again.tally.keep(found.tally.findings)
        found = again
    return found.report


async def verify_indexes(store: Store, *, watch: Watch | None = None) -> Report:
    """Check only the indexes and the snapshots that they name. ``Corrupt`` if the chain cannot be followed."""
    run = _Pass(store, watch if watch is not None else lambda _: None, await read_head(store))
    chain = Chain(store)
    ledger = await chain.ledger(run.head.place)
    await _list(run, layout.SNAPSHOTS, layout.INDICES)
    await _check_indexes(run, ledger, await chain.files(0, run.head.place, checkpoints=False))
    return run.report


async def _verified(store: Store, *, deep: bool, watch: Watch) -> _Pass:
    run = _Pass(store, watch)
    if not await _read_head(run):
        return run
    await _list(run, layout.COMMITS, layout.SNAPSHOTS, layout.INDICES)
    run.tally.checked["objects"] = len(run.sizes)
    if await _head_is_lost(run):
        return run
    total = run.head.commit_id
    check = await walk(store, run.head, _manifests(run), lambda done: watch(Stage("manifests", done, total)))
    run.tally.checked["commits"] = len(check.manifests)
    run.tally.findings += check.findings
    ledger = await _ledger(run, check)
    fence = RedactionFence(total) if ledger is None else await fence_of(store, Chain(store), ledger)
    files = await _check_files(run, check)
    if deep:
        await _check_data(run, files, fence)
    run.tally.findings += _strangers(run, check)
    await _check_redactions(run, check, fence)
    if ledger is not None:
        refs = [ref for manifest in reversed(check.manifests) for ref in manifest.refs]
        snapshots = await _check_indexes(run, ledger, refs)
        run.tally.findings += _unnamed_snapshots(run, snapshots)
        run.tally.checked["snapshots"] = len(snapshots)
        if deep:
            await _check_snapshots(run, snapshots, fence)
        run.tally.findings += await check_schemas(store, ledger)
        await _check_leftovers(run)
    return run


# --- head, listing, chain ---


async def _read_head(run: _Pass) -> bool:
    try:
        run.head = await read_head(run.store)
    except Corrupt as error:
        run.find("head_unreadable", layout.HEAD, str(error))
        return False
    if await run.store.find(layout.ENGINE) is not None:
        run.find("other_engine", layout.ENGINE, "another engine has marked the store: it may use the layout otherwise")
    return True


async def _head_moved(run: _Pass) -> bool:
    found = await run.store.find(layout.HEAD)
    return found is not None and found.version != run.head.version


async def _head_is_lost(run: _Pass) -> bool:
    """Whether there are commits and no head. An attempt at the first commit may be in progress."""
    last = max(_manifests(run), default=0)
    made = last > 1 or (last == 1 and any(key.startswith(layout.INDICES) for key in run.sizes))
    if run.head.version is not None or not made or await run.store.find(layout.HEAD) is not None:
        return False
    run.find("head_missing", layout.HEAD, f"there are commits up to {last}, and no head leads to them")
    return True


async def _list(run: _Pass, *prefixes: str) -> None:
    for prefix in prefixes:
        async for page in run.store.list(prefix):
            run.sizes.update((entry.key, entry.size) for entry in page.entries)
            run.watch(Stage("listing", len(run.sizes), 0))


def _manifests(run: _Pass) -> dict[int, list[str]]:
    """The listed manifests, by their commit."""
    found: dict[int, list[str]] = defaultdict(list)
    for key in run.sizes:
        commit_id = layout.commit_of_manifest(key)
        if commit_id is not None:
            found[commit_id].append(key)
    return found


async def _ledger(run: _Pass, check: ChainCheck) -> Ledger | None:
    """The ledger at the head; None where the chain is broken, because nothing can be derived from it then."""
    if not check.whole or any(found.rule.name == "summary_wrong" for found in check.findings):
        return None
    try:
        return await Chain(run.store).ledger(run.head.place)
    except HoldfastError as error:
        run.find("chain_break", run.head.manifest_path or layout.HEAD, str(error))
        return None


# --- files ---


async def _check_files(run: _Pass, check: ChainCheck) -> list[tuple[int, FileEntry]]:
    """The data files that exist, each with its commit."""
    named = [(manifest.commit_id, entry) for manifest in check.manifests for entry in manifest.files]
    there: list[tuple[int, FileEntry]] = []
    for commit_id, entry in named:
        size = run.sizes.get(entry.path)
        # A plain writer may have put a file elsewhere than under the listed prefixes.
        if size is None and (entry.path.startswith(layout.COMMITS) or not await exists(run.store, entry.path)):
            run.find("file_missing", entry.path, f"commit {commit_id} names it for {entry.type_id.label}")
        elif size is not None and size < SMALLEST_PARQUET:
            run.find("file_unreadable", entry.path, f"it has {size} bytes, which is too short for a data file")
        else:
            there.append((commit_id, entry))
    run.tally.checked["files"] = len(named)
    return there


async def _check_data(run: _Pass, files: Sequence[tuple[int, FileEntry]], fence: RedactionFence) -> None:
    pending = {each.place.commit_id for each in fence.pending}

    async def check(item: tuple[int, FileEntry]) -> tuple[int, FileEntry, list[Finding], bytes | None]:
        commit_id, entry = item
        try:
            body = (await run.store.get(entry.path)).body
        except NotFound:
            return commit_id, entry, [finding("file_missing", entry.path, "it was deleted during this check")], None
        findings, digest = await blocking(check_data, body, entry, commit_id)
        if findings and body.endswith(b"PAR1") and mark_of(body, entry.path) in pending:
            findings = []  # a redaction has rewritten it, and not its manifest yet: redaction_unfinished says so
        return commit_id, entry, findings, digest

    done = 0
    async for commit_id, entry, findings, digest in stream_bounded(files, check, limit=PARALLEL):
        run.tally.findings += findings
        if digest is not None:
            run.digests[entry.type_id][commit_id] = digest
        done += 1
        run.watch(Stage("files", done, len(files)))


def _strangers(run: _Pass, check: ChainCheck) -> Iterator[Finding]:
    """Objects under ``commits/`` that the chain does not name."""
    on_chain = {path.removesuffix("manifest.json") for path in check.paths}
    named = {entry.path for manifest in check.manifests for entry in manifest.files} | check.paths
    attempts: dict[str, int] = {}
    for key in run.sizes:
        if not key.startswith(layout.COMMITS) or key in named:
            continue
        folder = layout.folder_of(key)
        commit_id = layout.commit_of_folder(folder) if folder is not None else None
        if folder is None or commit_id is None:
            yield finding("foreign_object", key, "no object of an ontology has such a key")
        elif folder in on_chain:
            yield finding("foreign_object", key, f"it is in the folder of commit {commit_id}, whose manifest omits it")
        else:
            attempts[folder] = commit_id
    following = run.head.commit_id + 1
    for folder, commit_id in attempts.items():
        if commit_id == following:
            yield finding("open_attempt", folder, f"an attempt at the next commit, {commit_id}")
        elif commit_id > following:
            yield finding("orphan_attempt", folder, f"no writer can be at commit {commit_id} yet")
        elif check.knows(commit_id):
            yield finding("orphan_attempt", folder, f"an attempt at commit {commit_id} that lost")


# --- payload ---


async def _check_redactions(run: _Pass, check: ChainCheck, fence: RedactionFence) -> None:
    run.tally.checked["redactions"] = sum(REDACTS in manifest.extra for manifest in check.manifests)
    for each in fence.pending:
        message = f"commit {each.place.commit_id} ordered payload to be destroyed, and that is not done"
        run.find("redaction_unfinished", each.place.path, message)
    for load in await staged_loads(run.store):
        message = f"{len(load.keys)} objects, {load.size} bytes, of a bulk load that is running or was killed"
        run.find("staged_load", layout.load_prefix(load.load), message)


async def _check_leftovers(run: _Pass) -> None:
    """Report unreferenced objects that have payload which was ordered to be destroyed."""
    try:
        found = await leftovers(run.store)
    except Corrupt:
        return  # the chain is broken, which is reported elsewhere
    for each in found:
        name, commit_id = each.ordered.redaction.type_id.label, each.ordered.place.commit_id
        message = f"it has rows of {name} that commit {commit_id} ordered to be destroyed, and nothing names it"
        run.find("erased_payload", each.key, message)


# --- indexes and snapshots ---


async def _check_indexes(run: _Pass, ledger: Ledger, files: Sequence[FileRef]) -> Mapping[str, tuple[TypeId, Entry]]:
    """Check all indexes. Returns the snapshots that they name, by path."""
    types = sorted({*ledger.heads, *ledger.schemas})
    named: dict[str, tuple[TypeId, Entry]] = {}
    done = 0

    async def check(type_id: TypeId) -> None:
        nonlocal done
        findings, snapshots = await check_index(run.store, Truth.of(ledger, type_id, files), run.sizes)
        run.tally.findings += findings
        named.update((entry.path, (type_id, entry)) for entry in snapshots)
        done += 1
        run.watch(Stage("indexes", done, len(types)))

    await map_bounded(types, check, limit=PARALLEL)
    run.tally.checked["indexes"] = len(types)
    expected = {layout.index_key(*type_id) for type_id in types}
    for key in run.sizes:
        if key.startswith(layout.INDICES) and key not in expected:
            run.find("index_of_no_type", key, "the chain has no such type")
    return named


def _unnamed_snapshots(run: _Pass, named: Mapping[str, object]) -> Iterator[Finding]:
    for key in run.sizes:
        if key.startswith(layout.SNAPSHOTS) and key not in named:
            if layout.commits_of_snapshot(key) is None:
                yield finding("foreign_object", key, "no object of an ontology has such a key")
            else:
                yield finding("orphan_snapshot", key, "no index names it: superseded, or never published")


async def _check_snapshots(run: _Pass, named: Mapping[str, tuple[TypeId, Entry]], fence: RedactionFence) -> None:
    for number, (path, (type_id, entry)) in enumerate(named.items()):
        snapshot = await run.store.find(path)
        if snapshot is not None and not fence.concerns(type_id):  # superseded meanwhile, or about to be removed
            run.tally.findings += await blocking(check_snapshot, snapshot.body, entry, type_id, run.digests[type_id])
        run.watch(Stage("snapshots", number + 1, len(named)))
