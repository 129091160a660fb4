"""Who and what scenarios of an ontology share: a type without a class, a plain writer, a lie about an index."""

import hashlib
import io
import json
import random
from functools import lru_cache
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.clock import iso
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Lost
from holdfast.ontology.format import layout
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema
from holdfast.sim.world import Process

MARK_NAME = "Mark"
"""The type that a plain writer writes."""
NOWHERE = "commits/0-dead/entities/None.parquet"


def sim_type(type_id: TypeId) -> TypeInfo:
    """A type without a class."""
    return of_schema(type_id, {"entity_name": type_id.name, "fields": {}})


@lru_cache(maxsize=2_000)
def parquet(name: str, rows: tuple[tuple[str, str, bool], ...], commit_id: int) -> bytes:
    """Remembered: most of thousands of courses of one scenario have the same files."""
    table = pa.table(
        {
            "commit_id": pa.array([commit_id] * len(rows), pa.int64()),
            "entity_type": [name] * len(rows),
            "entity_key": [key for key, _, _ in rows],
            "schema_version_id": pa.array([1] * len(rows), pa.int64()),
            "fields_json": [fields for _, fields, _ in rows],
            "_retracted": [retracted for _, _, retracted in rows],
        }
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="none", use_dictionary=False, write_statistics=False)
    return sink.getvalue()


async def plain_commit(process: Process, token: str) -> bool:
    """One commit as the specification has it, with neither lock nor indexes; False if it lost the race."""
    store = process.backend
    found = await store.find(layout.HEAD)
    head: dict[str, Any] = json.loads(found.body) if found is not None else {"commit_id": 0, "manifest_path": None}
    number, attempt = head["commit_id"] + 1, process.ambient.ids.attempt()
    body = parquet(MARK_NAME, ((token, json.dumps({"by": token}), False),), number)
    path = f"commits/{number}-{attempt}/entities/Mark.parquet"
    await store.put(path, body, OVERWRITE)
    manifest: dict[str, Any] = {
        "commit_id": number,
        "parent_commit_id": head["commit_id"] or None,
        "parent_manifest_path": head["manifest_path"],
        "created_at": iso(process.clock.wall_ns()),
        "runtime_id": "plain",
        "metadata": {},
        "files": [
            {
                "kind": "entity",
                "type_name": MARK_NAME,
                "path": path,
                "row_count": 1,
                "schema_version_id": 1,
                "content_sha256": hashlib.sha256(body).hexdigest(),
            }
        ],
    }
    await store.put(f"commits/{number}-{attempt}/manifest.json", json.dumps(manifest).encode(), OVERWRITE)
    following = {
        "commit_id": number,
        "manifest_path": f"commits/{number}-{attempt}/manifest.json",
        "updated_at": manifest["created_at"],
        "runtime_id": "plain",
    }
    mode = CREATE if found is None else IfMatch(found.version)
    return not isinstance(await store.put(layout.HEAD, json.dumps(following).encode(), mode), Lost)


def lie(index: dict[str, Any], rng: random.Random) -> dict[str, Any]:
    """What the index does not say."""
    entries = index["entries"]
    match rng.randrange(4):
        case 0:
            return {**index, "entries": entries[1:]}
        case 1:
            return {**index, "max_indexed_commit": index["max_indexed_commit"] + 100}
        case 2 if entries:
            return {
                **index,
                "entries": [*entries[:-1], {**entries[-1], "path": NOWHERE}],
            }
    return {**index, "entries": [], "max_indexed_commit": 1}
