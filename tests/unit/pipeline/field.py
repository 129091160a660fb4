"""Accepted batches for tests of the pipeline, and what was derived from them, read as anybody would read it.

The reference is ``tests/unit/telemetry/rollup/plain``: it computes from the records themselves and shares no
code with the pipeline. ``agrees`` compares every published row with it.
"""

import random
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from holdfast.base.ids import Ambient
from holdfast.objects.store import ADDRESSED, CREATE, Store
from holdfast.telemetry.accept import layout as ingest
from holdfast.telemetry.accept import references
from holdfast.telemetry.accept.accept import submission_of
from holdfast.telemetry.accept.manifest import AcceptedManifest
from holdfast.telemetry.frame import Batch, Sequenced, decode, encode, pack_sequenced
from holdfast.telemetry.records import Counter, Gauge, Histogram, Log
from holdfast.telemetry.rollup import chunk, layout
from holdfast.telemetry.rollup.layout import Windows
from holdfast.telemetry.rollup.manifest import Generation, Kind, Table, UnitManifest, read_generation
from tests.unit.telemetry.rollup import plain
from tests.unit.telemetry.rollup.rolled import agree, as_dict

SECOND = 1_000_000_000
HOUR = 3600 * SECOND
START = 490_000 * HOUR
"""An hour long ago, and the first of no day."""


@dataclass
class Field:
    """Batches that were accepted into a store."""

    store: Store
    batches: list[Batch] = field(default_factory=list)
    manifests: list[AcceptedManifest] = field(default_factory=list)

    async def accept(
        self, agent: str, boot: str, records: dict[int, Any], *, at_ns: int | None = None, refer: bool = True
    ) -> AcceptedManifest:
        """Accept one batch; without ``refer``, as a collector that died right after the acceptance."""
        body = encode(pack_sequenced(agent, boot, [Sequenced(seq, each) for seq, each in records.items()]))
        batch = decode(body)
        submission = submission_of(body, batch)
        latest = max(each.time_ns for each in records.values())
        manifest = submission.manifest(
            accepted_at_unix_ns=latest + SECOND if at_ns is None else at_ns,
            collector_id="collector-1",
            authority_id=None,
            write_id=Ambient.system().ids.write_id(),
        )
        await self.store.put(submission.blob_key, body, ADDRESSED)
        await self.store.put(manifest.key, manifest.encode(), CREATE)
        if refer:
            for reference in references.of_accepted(manifest):
                await references.write(self.store, reference)
        self.batches.append(batch)
        self.manifests.append(manifest)
        return manifest

    async def season(self, seed: int, *, agents: int = 3, batches: int = 6, hours: int = 2, gap: int = 0) -> None:
        """A reproducible mixture: counters that are reset, gauges, histograms, logs, late and overlapping batches."""
        rng = random.Random(seed)
        for number in range(agents):
            agent, boot, seq = f"agent-{number}", f"boot-{rng.randrange(2)}", gap
            for _ in range(batches):
                count = rng.randrange(3, 12)
                begin = max(gap, seq - rng.choice((0, 0, 0, 2)))
                at = START + rng.randrange(hours * 3600) * SECOND
                records = {n: record(rng, at + (n - begin) * 7 * SECOND) for n in range(begin, begin + count)}
                await self.accept(agent, boot, records)
                seq = begin + count


def record(rng: random.Random, at: int) -> Any:
    labels = {"cpu": str(rng.randrange(2))}
    match rng.randrange(4):
        case 0:
            return Gauge("load", rng.choice((0.5, 1.25, -3.0, float("nan"))), at, labels)
        case 1:
            return Counter("requests", rng.randrange(100), at, labels)
        case 2:
            return Histogram("latency", (0.1, 1.0), (rng.randrange(5), rng.randrange(5), rng.randrange(5)), 2.5, at)
        case _:
            return Log(f"disk {rng.randrange(3)} is full", at)


def season_of(hours: Iterable[int]) -> range:
    return range(min(hours), max(hours) + 1)


async def generations(store: Store, kind: Kind) -> list[Generation]:
    """The current generation of every hour."""
    hours = {layout.hour_in(key) async for key in store.keys(layout.MANIFESTS)}
    found = [await read_generation(store, kind, hour) for hour in sorted(hour for hour in hours if hour is not None)]
    return [each for each in found if each is not None]


async def rows(store: Store, window: str) -> dict[Any, dict[str, Any]]:
    """Every row of a window, from the chunks that the current generations name."""
    size = layout.window_of(window)
    kind = Kind.ROLLUP if size <= layout.HOUR_NS else Kind.DAILY
    found: dict[Any, dict[str, Any]] = {}
    for generation in await generations(store, kind):
        for unit in generation.units:
            for ref in unit.chunks:
                if ref.table is Table.ROLLUP and ref.window_ns == size:
                    part = as_dict(chunk.decode((await store.get(ref.key)).body, key=ref.key))
                    assert not found.keys() & part.keys(), "a row is visible twice"
                    found |= part
    return found


async def agrees(store: Store, batches: list[Batch], windows: Iterable[str] = ("10s", "1m", "5m", "1h", "1d")) -> int:
    """Every row that plain Python computes from the batches is published, with these numbers, and no other."""
    count = 0
    for name in windows:
        expected = plain.windows(batches, layout.window_of(name))
        found = await rows(store, name)
        assert found.keys() == expected.keys(), name
        for key, window in expected.items():
            agree(found[key], plain.row(key[0], window))
        count += len(found)
    return count


async def derived_keys(store: Store) -> dict[str, bytes]:
    """What is published, byte for byte: current generations of every kind, and all that they name."""
    found: dict[str, bytes] = {}
    for kind in Kind:
        for generation in await generations(store, kind):
            for unit in generation.units:
                manifest = await store.get(layout.unit_key(generation.hour, unit.unit_id))
                for ref in UnitManifest.read(manifest).chunks:
                    found[ref.key] = (await store.get(ref.key)).body
    return found


WINDOWS = Windows.of()
ACCEPTED = ingest.ACCEPTED
