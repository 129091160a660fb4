"""The fifth act: a witness counts everything again from the files.

It shares no code with what wrote the files: it reads JSON and Parquet, and knows what the demo did.
"""

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.cli.demo.acts import Fleet
from holdfast.cli.demo.stage import Stage
from holdfast.cli.demo.victim import NAMESPACE, ORDERS, RUN_ID, SHELVES

WINDOWS_NS = {"1m": 60 * 10**9, "1h": 3600 * 10**9}
Rows = dict[tuple[str, str, str, int], list[float]]  # by window, metric, agent and begin of the window


async def counts_again(stage: Stage, fleet: Fleet) -> None:
    root = stage.folder
    lines = (root / "runs" / RUN_ID / "journal.jsonl").read_text(encoding="utf-8").splitlines()
    steps = [each["result"] for each in map(json.loads, lines) if each["type"] == "step"]
    stage.check(f"the journal has {len(steps)} results", steps == [10 * n for n in range(1, SHELVES + 1)], steps)

    stage.wait_for("the witness reads all frames and rollups")
    accepted = await blocking(lambda: set(batches(root)))
    whole = f"{len(accepted)} batches are in the store: all that were acknowledged, byte for byte"
    stage.check(whole, accepted == fleet.batches, accepted ^ fleet.batches)
    found, wanted = await blocking(lambda: rolled_up(root)), sums(fleet)
    wrong = [place for place in found.keys() | wanted if found.get(place) != wanted.get(place)]
    samples = sum(map(len, fleet.records.values()))
    stage.check(f"{len(wanted)} rows of rollups count {samples} samples, each once", not wrong, wrong[:1])

    chain = list(commits(root))
    stage.check(f"{len(chain)} commits are in one chain", chain == list(range(len(chain), 0, -1)), chain)
    claims = [json.loads(path.read_bytes()) for path in root.glob(f"claims/{NAMESPACE}/*/*.json")]
    ends = [sum(each[name] is not None for each in claims) for name in ("ack_at", "dead_lettered_at")]
    stage.check(f"{len(ORDERS)} events, 2 handlers: {ends[0]} acknowledged, {ends[1]} dead", ends == [5, 1], claims)


def batches(root: Path) -> Iterator[tuple[str, int, int]]:
    """Accepted batches whose bytes have the hash that their manifest gives."""
    for path in root.glob("accepted/v1/agent=*/boot=*/*.json"):
        manifest = json.loads(path.read_bytes())
        if hashlib.sha256((root / manifest["raw_blob_key"]).read_bytes()).hexdigest() == manifest["frame_sha256"]:
            yield manifest["agent_id"], manifest["seq_start"], manifest["seq_end"]


def rolled_up(root: Path) -> Rows:
    """Count, sum, least and greatest of each row in the rollup chunks that the newest manifest of each hour names."""
    newest = {path.parent: path for path in sorted(root.glob("manifests/v1/date=*/hour=*/rollup-*.json"))}
    units = [unit for path in newest.values() for unit in json.loads(path.read_bytes())["units"]]
    rows: defaultdict[Any, list[float]] = defaultdict(list)
    for chunk in (chunk for unit in units for chunk in unit["chunks"] if chunk["table"] == "rollup"):
        for row in pq.read_table(root / chunk["key"]).to_pylist():
            start_ns = int(row["window_start"].timestamp()) * 10**9
            figures = rows[chunk["window"], row["metric"], row["agent"], start_ns]
            figures += [row["count"], row["sum"], row["min"], row["max"]]  # too many if a row is there twice
    return rows


def sums(fleet: Fleet) -> Rows:
    """The same figures, computed from what was sent."""
    rows: defaultdict[Any, list[float]] = defaultdict(list)
    for host, records in fleet.records.items():
        for each in records:
            for window, size_ns in WINDOWS_NS.items():
                rows[window, each.name, host, each.time_ns // size_ns * size_ns].append(each.value)
    return {place: [len(values), sum(values), min(values), max(values)] for place, values in rows.items()}


def commits(root: Path) -> Iterator[int]:
    """The numbers of the commits, from the head back to the first."""
    path = json.loads((root / "meta/head.json").read_bytes())["manifest_path"]
    while path:
        manifest = json.loads((root / path).read_bytes())
        yield manifest["commit_id"]
        path = manifest.get("parent_manifest_path")
