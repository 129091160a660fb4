"""The laws: what a store must do for Holdfast to be correct on it, as plain async functions.

Tests run them over every backend, the simulator over its faulty store, and ``holdfast doctor`` over a user's own
bucket. A law gets a ``Bench`` and either returns a figure for the report or raises ``Violation``. A law that was kept
for N rounds is evidence, not proof; a violation is proof.
"""

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, TypeVar

from holdfast.base.aio import map_bounded
from holdfast.base.errors import Ambiguous, Conflict, Contended, Denied, HoldfastError, Invalid, Unavailable
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.layer import Layer, Scoped
from holdfast.objects.lease import Grant, Lease
from holdfast.objects.register import Plain, Register
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import (
    ADDRESSED,
    CREATE,
    OVERWRITE,
    Entry,
    IfMatch,
    Lost,
    Mode,
    NotModified,
    Overwrite,
    Page,
    Store,
    Version,
    Written,
)

T = TypeVar("T")

KEPT, BROKEN, UNJUDGED = "kept", "broken", "unjudged"
CLEAN_UP_PASSES = 4
ROUNDS_WITHOUT_OVERLAP = 10
"""A race ends after so many rounds in which no writes overlapped."""
REPETITIONS = 10
"""How often a law without a race repeats its steps."""


class Violation(Exception):  # a finding, not an error of ours
    """The store broke a promise. The message is the evidence."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How thoroughly a store is examined."""

    races: int = 8
    """Writers at once."""
    rounds: int = 125
    """Rounds of every race in which all writers write at the same time."""
    race_seconds: float = 30.0
    """The rounds of one law end after this time, even if too few writes overlapped."""
    keys: int = 1_100
    """Objects in the listing law; more than 1,000 makes real stores turn the page."""
    large_bytes: int = 8 * 1024 * 1024

    @property
    def overlapping(self) -> int:
        """How many conditional writes of one law should overlap in time with another one on the same key."""
        return self.races * self.rounds


class Overlaps:
    """Counts the conditional writes that were in flight at the same time as another one on the same key.

    Each is in flight from the moment its request is handed to the backend until its answer is back. Only such writes
    can show that a store checks a condition and writes in two steps.
    """

    def __init__(self) -> None:
        self.count = 0
        self._in_flight: dict[str, set[object]] = {}
        self._overlapped: set[object] = set()

    @contextmanager
    def counting(self, key: str) -> Iterator[None]:
        writes = self._in_flight.setdefault(key, set())
        this = object()
        writes.add(this)
        if len(writes) > 1:
            self._overlapped |= writes
        try:
            yield
            self.count += this in self._overlapped
        finally:
            self._overlapped.discard(this)
            writes.discard(this)
            if not writes:
                self._in_flight.pop(key, None)


class _CountingOverlaps(Layer):
    def __init__(self, inner: Store, prefix: str, overlaps: Overlaps) -> None:
        super().__init__(inner)
        self._prefix = prefix
        self._overlaps = overlaps

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        if isinstance(mode, Overwrite):
            return await self.inner.put(key, body, mode)
        with self._overlaps.counting(self._prefix + key):
            return await self.inner.put(key, body, mode)


class Bench:
    """Several clients of one store, under a prefix.

    ``backends`` are bare, one per client, so that a law can put a fault between a backend and its client.
    """

    def __init__(
        self,
        backends: Sequence[Store],
        *,
        prefix: str,
        ambient: Ambient,
        effort: Effort,
        retry: RetryPolicy,
        usage: Usage | None = None,
    ) -> None:
        self._backends = backends
        self._prefix = prefix
        self._retry = retry
        self.ambient = ambient
        self.effort = effort
        self.usage = usage if usage is not None else Usage()
        self.overlaps = Overlaps()

    def below(self, name: str) -> "Bench":
        """A bench for one law, under a deeper prefix, with overlaps of its own."""
        return Bench(
            self._backends,
            prefix=f"{self._prefix}{name}/",
            ambient=self.ambient,
            effort=self.effort,
            retry=self._retry,
            usage=self.usage,
        )

    def client(self, number: int = 0, *, fault: Callable[[Store], Store] | None = None) -> Store:
        """Client ``number``, with ``fault`` between it and its backend."""
        backend: Store = _CountingOverlaps(
            Scoped(self._backends[number % len(self._backends)], self._prefix), self._prefix, self.overlaps
        )
        if fault is not None:
            backend = fault(backend)
        return Client(backend, ambient=self.ambient, retry=self._retry, usage=self.usage)

    def clients(self) -> list[Store]:
        return [self.client(number) for number in range(self.effort.races)]

    async def rounds(self) -> AsyncIterator[int]:
        """Numbers of the rounds of a race, until enough writes overlapped or the time is up.

        A store that answers each write before the next one is sent (memory, for example) never shows an overlap; more
        rounds would not change that.
        """
        until_ns = self.ambient.clock.monotonic_ns() + int(self.effort.race_seconds * 1e9)
        for number in itertools.count():
            yield number
            observed = self.overlaps.count
            futile = observed == 0 and number + 1 >= min(self.effort.rounds, ROUNDS_WITHOUT_OVERLAP)
            if observed >= self.effort.overlapping or futile or self.ambient.clock.monotonic_ns() >= until_ns:
                return

    async def clean_up(self) -> None:
        """Delete everything under the bench's prefix; a cancelled request may still land, so list it again."""
        store = self.client()
        keys: list[str] = []
        for _ in range(CLEAN_UP_PASSES):
            if not (keys := await _keys(store)):
                return
            await store.delete_many(keys)
        raise Unavailable(f"{len(keys)} objects were listed after they had been deleted")


@dataclass(frozen=True, slots=True)
class Law:
    """One promise. ``breach`` says what goes wrong in production without it."""

    name: str
    promise: str
    breach: str
    run: Callable[[Bench], Awaitable[str]]
    races: bool = False
    """Whether its evidence is writes that overlapped in time."""


@dataclass(frozen=True, slots=True)
class Confidence:
    """How many overlapping writes a law that races has observed."""

    observed: int
    wanted: int

    @property
    def enough(self) -> bool:
        return self.observed >= self.wanted

    def __str__(self) -> str:
        return f"{self.observed:,} overlapping writes of {self.wanted:,} wanted"


@dataclass(frozen=True, slots=True)
class Finding:
    law: Law
    verdict: str
    figure: str
    """The measurement, or the evidence of a violation."""
    seconds: float
    error: HoldfastError | None = None
    """The error that ended the law, if it was not a ``Violation``."""
    confidence: Confidence | None = None
    """None for laws without a race."""

    @property
    def kept(self) -> bool:
        return self.verdict == KEPT

    @property
    def is_weak(self) -> bool:
        """Kept, but with too few overlapping writes for a certificate."""
        return self.kept and self.confidence is not None and not self.confidence.enough


async def judge(bench: Bench, laws: Sequence[Law]) -> AsyncIterator[Finding]:
    """Run the laws one by one.

    A law that the store did not serve to its end (unreachable, not permitted, a full disk, an overload, an editor that
    lost too many races) is neither kept nor broken: unjudged.
    """
    for law in laws:
        began_ns = bench.ambient.clock.monotonic_ns()
        own = bench.below(law.name)
        problem: HoldfastError | None = None
        try:
            verdict, figure = KEPT, await law.run(own)
        except Violation as violation:
            verdict, figure = BROKEN, str(violation)
        except HoldfastError as error:
            verdict, figure, problem = UNJUDGED if _is_unserved(error) else BROKEN, str(error), error
            if verdict == BROKEN:
                figure = f"{type(error).__name__}: {error}"
        seconds = (bench.ambient.clock.monotonic_ns() - began_ns) / 1e9
        confidence = Confidence(own.overlaps.count, bench.effort.overlapping) if law.races else None
        yield Finding(law, verdict, figure, seconds, problem, confidence)


def _is_unserved(error: HoldfastError) -> bool:
    """Whether an error says nothing about the law, because the store did not answer.

    ``Ambiguous`` is such an error if no answer came back, but not if the store refuses a condition that holds.
    """
    if isinstance(error, Ambiguous):
        return isinstance(error.__cause__, Unavailable) and not isinstance(error.__cause__, Contended)
    return isinstance(error, Unavailable | Conflict | Denied)


def require(condition: bool, evidence: str) -> None:
    """Raise `Violation` unless the condition holds."""
    if not condition:
        raise Violation(evidence)


class Echoing(Layer):
    """Drops every second response of a conditional write (``LOSE``), or delivers each such write twice (``REPEAT``)."""

    LOSE: Final = "lost-response"
    REPEAT: Final = "delivered-twice"

    def __init__(self, inner: Store, kind: str) -> None:
        super().__init__(inner)
        self._kind = kind
        self._drop = False

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        first = await self.inner.put(key, body, mode)
        if isinstance(mode, Overwrite):
            return first
        if self._kind == self.REPEAT:
            return await self.inner.put(key, body, mode)
        self._drop = not self._drop
        if self._drop:
            raise Unavailable(f"{key}: the response was dropped on purpose", maybe_applied=True)
        return first


ODD_KEYS = (
    "plain",
    "space in name",
    "a+b=c&d;e,f",
    "percent%41%2F%",
    "hash#question?star*",
    "quote'\"`",
    "tilde~bang!dollar$at@",
    "back\\slash",
    "brackets[]{}()<>|^",
    "colon:name",
    "dot.",
    ".hidden",
    "...",
    "UPPER",
    "upper",
    "Grüße",
    "日本語/キー",
    "emoji-😀",
    "e\u0301-combining",
    "long-" + "x" * 250,
    "deep/" * 12 + "leaf",
)


async def round_trip(bench: Bench) -> str:
    """Bytes come back as they went in, to every client, at once."""
    writer, reader = bench.client(0), bench.client(1)
    for number, body in enumerate((b"", b"x", bytes(range(256)) * 17)):
        key = f"object-{number}"
        require(await reader.find(key) is None, f"{key}: there before it was written")
        outcome = await writer.put(key, body)
        require(isinstance(outcome, Written), f"an unconditional write of {key} was answered {outcome}")
        found = await reader.get(key)
        require(found.body == body, f"{key}: wrote {len(body)} bytes, another client read {len(found.body)}")
        head = await reader.head(key)
        require(
            head.size == len(body) and head.version == found.version,
            f"{key}: head returned {head}, get {found.version}",
        )
        await writer.delete(key)
        require(await reader.find(key) is None, f"{key}: still readable after its delete was answered")
    return "3 bodies, 2 clients"


async def read_your_writes(bench: Bench) -> str:
    """A read that begins after an overwrite was answered never returns the older bytes, and no read a mixture."""
    writer, *readers = bench.clients()
    before: bytes | None = None
    for number in range(2 * REPETITIONS):
        body = b"value %07d; " % number * 2_000
        _, *read = await _concurrently([_written(writer, "cell", body), *(_body(each) for each in readers[:3])])
        for found_body in read:
            require(found_body in (before, body), f"a read during overwrite {number} got neither old nor new bytes")
        reader = readers[number % len(readers)]
        found, head = await reader.get("cell"), await reader.head("cell")
        require(found.body == body, f"read {found.body[:20]!r} after {body[:20]!r} was acknowledged")
        require(
            head.version == found.version,
            f"head returned {head.version}, get {found.version}, after overwrite {number}",
        )
        part = (await reader.range("cell", 0, 20)).body
        require(part == body[:20], f"a range has {part!r} after {body[:20]!r} was acknowledged")
        before = body
    return f"{2 * REPETITIONS} overwrites"


async def _body(store: Store) -> bytes | None:
    found = await store.find("cell")
    return None if found is None else found.body


async def odd_keys(bench: Bench) -> str:
    """Keys are exact: odd characters, long components, names that differ only in case."""
    store = bench.client()
    written: list[str] = []
    for key in ODD_KEYS:
        try:
            await store.put(key, key.encode())
        except Invalid:
            require("\\" in key, f"{key!r} is refused")  # Azure stores it as a slash, so there it may be refused
        else:
            written.append(key)
    for key in written:
        found = await store.find(key)
        require(found is not None, f"{key!r} was written and cannot be read")
        require(found is not None and found.body == key.encode(), f"{key!r} has the bytes of another key")
    listed = await _keys(store)
    require(listed == sorted(written), f"listed {set(listed) ^ set(written) or 'in another order'}")
    return f"{len(written)} keys"


async def object_and_folder(bench: Bench) -> str:
    """``a``, ``a/b`` and ``ab/c`` are three objects, each deleted alone; ``a/`` lists only what is under ``a/``."""
    store = bench.client()
    for key in ("a/b", "a", "ab/c", "a-b", "a0", "d", "d/e"):
        await store.put(key, key.encode())
    for key in ("a/b", "a", "ab/c", "d", "d/e"):
        require((await store.get(key)).body == key.encode(), f"{key} has other bytes")
    listed = await _keys(store)
    require(listed == ["a", "a-b", "a/b", "a0", "ab/c", "d", "d/e"], f"listed {listed}")
    inside = await _keys(store, "a/")
    require(inside == ["a/b"], f"under a/ it listed {inside}")
    for deleted, kept in (("a", "a/b"), ("d/e", "d")):
        await store.delete(deleted)
        require(await store.find(deleted) is None, f"{deleted} can be read after its delete was answered")
        require(await store.find(kept) is not None, f"the delete of {deleted} removed {kept}")
    return "7 keys"


async def create_exclusive(bench: Bench) -> str:
    """Exactly one of many racing creators is answered that it won, and its bytes are there."""
    number = 0
    async for number in bench.rounds():
        await _one_winner(bench, f"race-{number}", None)
    return f"{number + 1} races of {bench.effort.races}"


async def if_match_wins_once(bench: Bench) -> str:
    """Exactly one of many writers that saw the same version is answered that it won."""
    number = 0
    async for number in bench.rounds():
        key = f"race-{number}"
        await _one_winner(bench, key, await _written(bench.client(), key, b"first"))
    return f"{number + 1} races of {bench.effort.races}"


async def _one_winner(bench: Bench, key: str, version: Version | None) -> None:
    clients = bench.clients()
    bodies = [f"{key} writer {n} {bench.ambient.ids.write_id()}".encode() for n in range(len(clients))]
    mode = CREATE if version is None else IfMatch(version)
    outcomes = await _concurrently(client.put(key, body, mode) for client, body in zip(clients, bodies, strict=True))
    winners = [n for n, outcome in enumerate(outcomes) if isinstance(outcome, Written)]
    require(len(winners) == 1, f"{key}: {len(winners)} of {len(clients)} racing writers were answered that they won")
    require((await clients[0].get(key)).body == bodies[winners[0]], f"{key}: has the bytes of a writer that lost")


async def stale_write_refused(bench: Bench) -> str:
    """A write over a version that is no longer there changes nothing."""
    store = bench.client()
    first = await _written(store, "cell", b"first")
    await _written(store, "cell", b"second")
    outcome = await store.put("cell", b"stale", IfMatch(first))
    require(isinstance(outcome, Lost), "a write over a stale version was answered as done")
    require((await store.get("cell")).body == b"second", "a write over a stale version replaced the bytes")
    outcome = await store.put("cell", b"again", CREATE)
    require(isinstance(outcome, Lost), "a create over an existing object was answered as done")
    require((await store.get("cell")).body == b"second", "a create over an existing object replaced the bytes")
    return "2 writes refused"


async def if_match_needs_object(bench: Bench) -> str:
    """If-match on a missing key is a lost race and creates nothing; a create takes the name."""
    store = bench.client()
    version = await _written(store, "deleted", b"x")
    await store.delete("deleted")
    await store.delete("deleted")
    outcome = await store.put("deleted", b"y", IfMatch(version))
    require(outcome == Lost(None), f"if-match on a missing key was answered {outcome}")
    require(await store.find("deleted") is None, "if-match on a missing key created it")
    outcome = await store.put("deleted", b"z", CREATE)
    require(isinstance(outcome, Written), "a deleted name could not be created again")
    return "1 write refused"


async def counters_exact(bench: Bench) -> str:
    """Increments by many editors of one register add up."""
    registers = [Register(store, "counter", Plain("holdfast.law"), bench.ambient) for store in bench.clients()]
    expected = 0
    async for number in bench.rounds():
        await _concurrently(
            register.edit(f"{number}-{editor}", lambda value: (value or 0) + 1)
            for editor, register in enumerate(registers)
        )
        expected += len(registers)
        final = await registers[number % len(registers)].read()
        counted = final.value if final is not None else None
        require(counted == expected, f"{expected} increments were acknowledged, the counter is {counted}")
    return f"{len(registers)} editors, {expected} increments"


async def conditional_get(bench: Bench) -> str:
    """A reader that has the current version gets no bytes, and one that has another gets the new ones."""
    store = bench.client()
    first = await _written(store, "cell", b"first")
    require(await store.get_unless("cell", first) == NotModified(), "the same version was sent again")
    second = await _written(store, "cell", b"second")
    require(second != first, "two different bodies have one version")
    found = await store.get_unless("cell", first)
    require(not isinstance(found, NotModified) and found.body == b"second", "a change was hidden by a conditional get")
    return "2 reads"


async def ranges(bench: Bench) -> str:
    """A range is cut at the object's end, and empty past it; parts say which version of the bytes they are from."""
    store = bench.client()
    await store.put("digits", b"0123456789")
    for start, end, expected in ((0, 4, b"0123"), (8, 20, b"89"), (9, 10, b"9"), (10, 12, b""), (50, 60, b"")):
        part = await store.range("digits", start, end)
        require(
            (part.body, part.size) == (expected, 10), f"bytes {start} to {end} of ten digits were returned as {part}"
        )
    same = {(await store.range("digits", start, start + 2)).of for start in (0, 4, 8)}
    require(len(same) == 1, f"parts of one object have several versions: {same}")
    await store.put("digits", b"9876543210")
    other = (await store.range("digits", 0, 2)).of
    require(other not in same, "parts of an object and of its replacement have one version")
    return "9 ranges"


async def large_body(bench: Bench) -> str:
    """A large object is written whole, conditionally and not, and its condition counts."""
    store = bench.client()
    size = bench.effort.large_bytes
    block = bytes(bench.ambient.rng.getrandbits(8) for _ in range(1024))
    body = (block * (size // len(block) + 1))[:size]
    for key, mode in (("created", CREATE), ("addressed", ADDRESSED)):
        outcome = await store.put(key, body, mode)
        # An addressed write may be answered Lost by a second delivery of itself.
        require(isinstance(outcome, Written) or mode is ADDRESSED, f"{key}: not written")
        require((await store.head(key)).size == size, f"{key}: head returns another size")
        require((await store.get(key)).body == body, f"{key}: other bytes were read")
    outcome = await store.put("created", body[::-1] + b"!", CREATE)
    require(isinstance(outcome, Lost), "a large create over an existing object was answered as done")
    require((await store.get("created")).body == body, "a large create over an existing object replaced the bytes")
    return f"{size / 1024 / 1024:.0f} MiB"


async def listing_complete(bench: Bench) -> str:
    """A listing has every object that was acknowledged before it began, once, in order, with its size, on all pages."""
    writer, reader = bench.client(0), bench.client(1)
    sizes = {f"item/{number:06d}": number % 7 for number in range(bench.effort.keys)}
    names = sorted(sizes)
    await map_bounded(names, lambda name: writer.put(name, bytes(sizes[name])), limit=32)
    # Objects are created and deleted between two pages: a server that counts positions repeats some or skips them.
    others = [f"item/!{number}" for number in range(3)]

    async def add() -> None:
        for key in others:
            await writer.put(key, b"x")

    for meanwhile in (add, partial(writer.delete_many, [*others, "item/!never"])):
        entries = [entry for entry in await _listed_with(reader, "item/", meanwhile) if entry.key not in others]
        listed = [entry.key for entry in entries]
        missing = len(set(names) - set(listed))
        require(listed == names, f"{len(names)} objects written, {len(listed)} listed ({missing} missing)")
        wrong = [entry for entry in entries if entry.size != sizes[entry.key]]
        require(not wrong, f"{len(wrong)} objects listed with a wrong size, such as {wrong[:1]}")
    half = names[len(names) // 2]
    rest = await _keys(reader, "item/", after=half)
    require(rest == names[len(names) // 2 + 1 :], f"after {half}: {len(rest)} listed")
    folders = [folder async for page in reader.list(delimiter=True) for folder in page.folders]
    require(folders == ["item/"], f"with a delimiter: {folders}")
    await writer.delete_many(names)
    left = await _keys(reader, "item/")
    require(not left, f"{len(left)} objects listed after they were deleted")
    return f"{len(names)} keys"


async def _listed_with(store: Store, prefix: str, meanwhile: Callable[[], Awaitable[None]]) -> list[Entry]:
    """A listing; ``meanwhile`` runs after its first page."""
    pages: list[Page] = []
    async for page in store.list(prefix):
        if not pages:
            await meanwhile()
        pages.append(page)
    return [entry for page in pages for entry in page.entries]


async def listing_fresh(bench: Bench) -> str:
    """Another client's listing shows a write, and its delete, at once."""
    writer, reader = bench.client(0), bench.client(1)
    for number in range(REPETITIONS):
        key = f"fresh/{number:04d}"
        await writer.put(key, b"x")
        require(key in await _keys(reader, "fresh/"), f"{key} was acknowledged and not listed")
        if number % 2:
            await writer.delete(key)
            require(key not in await _keys(reader, "fresh/"), f"{key} listed after its delete")
    return f"{REPETITIONS} writes"


async def lost_response_settles(bench: Bench) -> str:
    """A write whose response is lost, or that is delivered twice, is reported as done, and done once."""
    echoes = (Echoing.LOSE, Echoing.REPEAT)
    each = REPETITIONS // 2
    for echo in echoes:
        store = bench.client(fault=lambda inner, echo=echo: Echoing(inner, echo))  # type: ignore[misc]  # mypy and default arguments
        created = await store.put(f"cell-{echo}", b"created " + echo.encode(), CREATE)
        require(isinstance(created, Written), f"{echo}: our own create was reported as a lost race")
        register = Register(store, f"counter-{echo}", Plain("holdfast.law"), bench.ambient)
        for turn in range(each):
            await register.edit(f"turn-{turn}", lambda value: (value or 0) + 1)
        final = await register.read()
        counted = final.value if final is not None else None
        require(counted == each, f"{echo}: {each} increments were acknowledged, the counter is {counted}")
    return f"{len(echoes) * (each + 1)} writes"


async def lease_single_owner(bench: Bench) -> str:
    """Exactly one of many contenders gets the lease, and every change of owner raises the epoch."""
    clients = bench.clients()
    epochs: list[int] = []
    async for _ in bench.rounds():
        leases = [Lease(store, "lease", f"owner-{n}", bench.ambient) for n, store in enumerate(clients)]
        answers = await _concurrently(lease.try_acquire() for lease in leases)
        grants = [(lease, answer) for lease, answer in zip(leases, answers, strict=True) if isinstance(answer, Grant)]
        require(len(grants) == 1, f"{len(grants)} of {len(clients)} contenders were granted one lease")
        lease, grant = grants[0]
        epochs.append(grant.epoch)
        await lease.release(grant)
    repeated = [epoch for epoch, times in Counter(epochs).items() if times > 1]
    require(epochs == sorted(epochs) and not repeated, f"epochs were granted as {epochs}")
    return f"{len(epochs)} rounds of {len(clients)}"


async def _keys(store: Store, prefix: str = "", after: str | None = None) -> list[str]:
    return [entry.key async for page in store.list(prefix, after=after) for entry in page.entries]


async def _written(store: Store, key: str, body: bytes) -> Version:
    outcome = await store.put(key, body)
    if isinstance(outcome, Written):
        return outcome.version
    raise Violation(f"an unconditional write of {key} was answered {outcome}")


async def _concurrently(calls: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All at once. The first failure cancels the others: none may still write when the bench is cleaned up."""
    tasks = [asyncio.ensure_future(call) for call in calls]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _law(name: str, breach: str, function: object, *, races: bool = False) -> Law:
    promise = " ".join((function.__doc__ or "").split())
    return Law(name, promise, breach, function, races)  # type: ignore[arg-type]  # every function above has the shape


LAWS: tuple[Law, ...] = (
    _law("round-trip", "what you read is not what was written", round_trip),
    _law("stale-write-refused", "conditions are ignored: every protocol here loses data", stale_write_refused),
    _law("if-match-needs-object", "a deleted object comes back to life", if_match_needs_object),
    _law("create-exclusive", "two writers both believe that they won a name", create_exclusive, races=True),
    _law("if-match-wins-once", "an acknowledged update is silently overwritten", if_match_wins_once, races=True),
    _law("counters-exact", "acknowledged increments are lost or doubled", counters_exact, races=True),
    _law("lost-response-settles", "a retry doubles a write or reports a success as a failure", lost_response_settles),
    _law("lease-single-owner", "two owners at once", lease_single_owner, races=True),
    _law("read-your-writes", "readers see the past after a write was acknowledged", read_your_writes),
    _law("conditional-get", "caches serve the past", conditional_get),
    _law("listing-fresh", "recovery and clean-up overlook what was just written", listing_fresh),
    _law("listing-complete", "recovery and clean-up overlook objects", listing_complete),
    _law("object-and-folder", "one object hides another", object_and_folder),
    _law("odd-keys", "keys are changed or confused", odd_keys),
    _law("ranges", "partial reads return the wrong bytes", ranges),
    _law("large-body", "large results are cut or refused", large_body),
)
