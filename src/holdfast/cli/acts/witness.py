"""Counts everything again, from plain files alone: manifests and generations are JSON, chunks and commits are Parquet,
frames are read by ``plain``. Nothing here is shared with what accepted, derived or committed any of it.

Slow and simple on purpose. What does not fit raises ``ProofFailed``, with what was found and what should have been.
"""

import hashlib
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from holdfast.cli.acts import plain
from holdfast.cli.acts.stage import ProofFailed, prove

SECONDS = {"s": 1, "m": 60, "h": 3600, "d": 86_400}
HOUR_NS = 3600 * 10**9

Batch = tuple[str, str, int, int]
"""Agent, boot, first and last sequence number."""
Series = tuple[str, str, tuple[tuple[str, str], ...], str]
"""Metric, agent, labels, kind."""
Row = dict[str, Any]
FIGURES = ("count", "sum", "min", "max", "first", "last", "increase", "resets")
COLUMNS = ["metric", "agent", "labels", "kind", "window_start", *FIGURES]


@dataclass(frozen=True)
class Books:
    """What was accepted."""

    batches: dict[Batch, str]
    """With the hash of the frame."""
    samples: dict[tuple[str, str, int], plain.Sample]
    """Each (agent, boot, sequence number) once."""
    logs: int
    refused: set[str]
    """Hashes of frames that conflict with an accepted one."""

    def series(self) -> dict[Series, list[plain.Sample]]:
        """In the order of time; of boot and sequence number, where times are equal."""
        found: dict[Series, list[plain.Sample]] = {}
        for (agent, _, _), sample in sorted(self.samples.items()):
            found.setdefault((sample.name, agent, sample.labels, sample.kind), []).append(sample)
        return {series: sorted(samples, key=lambda each: each.time_ns) for series, samples in found.items()}

    def emitted(self, first_hour: int, last_hour: int) -> set[tuple[str, str]]:
        """Who emitted what in these hours, the last included. The demo's hosts run one agent each, of the same name."""
        return {
            (agent, sample.name)
            for (agent, _, _), sample in self.samples.items()
            if first_hour <= sample.time_ns // HOUR_NS <= last_hour
        }


def accepted(root: Path) -> Books:
    batches: dict[Batch, str] = {}
    frames: dict[Batch, plain.Frame] = {}
    for path in sorted(root.glob("accepted/v1/agent=*/boot=*/*.json")):
        manifest = json.loads(path.read_bytes())
        batch = (manifest["agent_id"], manifest["boot_id"], manifest["seq_start"], manifest["seq_end"])
        body = (root / manifest["raw_blob_key"]).read_bytes()
        digest = hashlib.sha256(body).hexdigest()
        prove(digest == manifest["frame_sha256"], f"{path.name}: its bytes have the hash {digest}")
        frame = plain.read(body)
        prove((frame.agent, frame.boot, frame.start, frame.end) == batch, f"{path.name}: the frame is another's")
        prove(batch not in batches, f"{batch} is accepted twice")
        batches[batch], frames[batch] = digest, frame
    samples: dict[tuple[str, str, int], plain.Sample] = {}
    logs: set[tuple[str, str, int]] = set()
    for batch, frame in sorted(frames.items()):
        for sample in frame.samples:
            samples.setdefault((*batch[:2], sample.seq), sample)
        logs.update((*batch[:2], seq) for seq in frame.logs)
    conflicts = root.glob("quarantine/v1/identity-conflict/agent=*/boot=*/*/*.json")
    refused = {json.loads(path.read_bytes())["submitted_frame_sha256"] for path in conflicts}
    return Books(batches, samples, len(logs), refused)


def rolled_up(books: Books, window_ns: int) -> dict[tuple[Series, int], Row]:
    """What the rows of a window should say."""
    found: dict[tuple[Series, int], Row] = {}
    for series, samples in books.series().items():
        groups: dict[int, list[float]] = {}
        for sample in samples:
            groups.setdefault(sample.time_ns // window_ns * window_ns, []).append(sample.value)
        for start, values in groups.items():
            found[series, start] = _row(values, counter=series[3] == "counter")
    return found


def _row(values: list[float], *, counter: bool) -> Row:
    increase, resets = 0.0, 0
    for before, after in pairwise(values):
        increase += after if after < before else after - before
        resets += after < before
    steps = (increase, resets) if counter else (None, None)
    figures = (len(values), sum(values), min(values), max(values), values[0], values[-1], *steps)
    return dict(zip(FIGURES, figures, strict=True))


def current(root: Path, kind: str) -> Iterator[dict[str, Any]]:
    """The newest generation of every hour that has one."""
    newest: dict[Path, Path] = {}
    for path in sorted(root.glob(f"manifests/v1/date=*/hour=*/{kind}-*.json")):
        newest[path.parent] = path  # numbers have eight digits, so the last of an hour is the newest
    for path in newest.values():
        yield json.loads(path.read_bytes())


def derived(root: Path) -> dict[int, dict[tuple[Series, int], Row]]:
    """Rows of every window, as chunks of current generations have them. No row is there twice."""
    found: dict[int, dict[tuple[Series, int], Row]] = {}
    for kind in ("rollup", "daily"):
        for generation in current(root, kind):
            for chunk in (chunk for unit in generation["units"] for chunk in unit["chunks"]):
                rows = found.setdefault(_seconds(chunk["window"]) * 10**9, {})
                for row in pq.read_table(root / chunk["key"], columns=COLUMNS).to_pylist():
                    labels = tuple(sorted(row["labels"]))
                    start = int(row["window_start"].timestamp()) * 10**9
                    place = ((row["metric"], row["agent"], labels, row["kind"]), start)
                    prove(place not in rows, f"{place} is in two current chunks")
                    rows[place] = {name: row[name] for name in FIGURES}
    return found


def compare(books: Books, rows: dict[int, dict[tuple[Series, int], Row]]) -> int:
    """Every row of every window against the count of our own; how many there are."""
    checked = 0
    for window_ns, found in sorted(rows.items()):
        wanted = rolled_up(books, window_ns)
        prove(found.keys() == wanted.keys(), _difference(window_ns, found.keys(), wanted.keys()))
        for place, row in wanted.items():
            prove(found[place] == row, f"{place} in windows of {window_ns // 10**9} s: {found[place]} is not {row}")
        checked += len(wanted)
    return checked


def _difference(window_ns: int, found: Iterable[Any], wanted: Iterable[Any]) -> str:
    missing, extra = set(wanted) - set(found), set(found) - set(wanted)
    example = next(iter(missing or extra), None)
    return (
        f"windows of {window_ns // 10**9} s: {len(missing)} rows are missing, {len(extra)} too many, such as {example}"
    )


def head(root: Path) -> int:
    return int(json.loads((root / "meta/head.json").read_bytes())["commit_id"])


def emitting(root: Path, as_of: int) -> set[tuple[str, str]]:
    """Host and metric of every relation ``Emits`` that is there as of a commit: straight from the commits' files."""
    newest: dict[tuple[str, str], tuple[int, bool]] = {}
    for manifest in _chain(root):
        if manifest["commit_id"] > as_of:
            continue
        for file in manifest["files"]:
            if (file["kind"], file["type_name"]) != ("relation", "Emits"):
                continue
            for row in pq.read_table(root / file["path"]).to_pylist():
                key = (row["left_key"], row["right_key"])
                if row["commit_id"] <= as_of and newest.get(key, (0, False))[0] < row["commit_id"]:
                    newest[key] = (row["commit_id"], bool(row.get("_retracted")))
    return {key for key, (_, retracted) in newest.items() if not retracted}


def _chain(root: Path) -> Iterator[dict[str, Any]]:
    path = json.loads((root / "meta/head.json").read_bytes())["manifest_path"]
    while path:
        manifest = json.loads((root / path).read_bytes())
        yield manifest
        path = manifest.get("parent_manifest_path")


def _seconds(window: str) -> int:
    try:
        return int(window[:-1]) * SECONDS[window[-1]]
    except (ValueError, KeyError) as error:
        raise ProofFailed(f"{window!r} is no window") from error
