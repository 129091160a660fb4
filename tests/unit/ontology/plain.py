"""A plain reader and a plain writer, from the text of the specification; nothing of Holdfast's ontology is used.

They know the fields that the specification names, and nothing else: a writer makes its documents from scratch, an index
is read, changed and written back. A type is registered, migrated and dropped as the known writer of the layout does it.
"""

import asyncio
import io
import json
import random
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from hashlib import sha256
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.errors import NotFound
from holdfast.objects.store import CREATE, OVERWRITE, IfMatch, Lost, Store, Version

Rows = list[tuple[Any, dict[str, Any]]]
"""Key (a string, or left, right, instance) and fields."""

FOLDERS = {"entity": "entities", "relation": "relations"}
LOCK = "meta/locks/ontology_write.json"


class PlainReader:
    def __init__(self, store: Store) -> None:
        self.store = store

    async def json(self, key: str) -> Any:
        return json.loads((await self.store.get(key)).body)

    async def head(self) -> dict[str, Any]:
        try:
            found: dict[str, Any] = await self.json("meta/head.json")
        except NotFound:
            return {"commit_id": 0, "manifest_path": None}
        assert (found["manifest_path"] is not None) == (found["commit_id"] >= 1)
        return found

    async def chain(self, path: str | None) -> list[dict[str, Any]]:
        """Manifests from ``path`` back to the first."""
        found = []
        while path:
            manifest = await self.json(path)
            found.append(manifest)
            path = manifest.get("parent_manifest_path")
        return found

    async def resolve(self, kind: str, name: str, q_head: int, lower: int = 0) -> list[str]:
        head = await self.head()
        try:
            index = await self.json(f"meta/indices/{FOLDERS[kind]}/{name}.json")
        except NotFound:
            index = {"max_indexed_commit": 0, "entries": []}
        force = False
        if q_head == head["commit_id"]:
            manifest = await self.json(head["manifest_path"])
            touched = next(
                (file["path"] for file in manifest["files"] if (file["kind"], file["type_name"]) == (kind, name)), None
            )
            if touched:
                entries = [e for e in index["entries"] if e["min_commit_id"] == e["max_commit_id"] == q_head]
                force = not entries or entries[0]["path"] != touched
        selected = {
            entry["path"]
            for entry in index["entries"]
            if entry["max_commit_id"] > lower
            and entry["min_commit_id"] <= q_head
            and not (force and entry["min_commit_id"] == q_head)
        }
        covered = min(index["max_indexed_commit"], q_head)
        if force:
            covered = min(covered, q_head - 1)
        if covered < q_head:
            for manifest in await self.chain(head["manifest_path"]):
                if manifest["commit_id"] <= covered:
                    break
                if lower < manifest["commit_id"] <= q_head:
                    for file in manifest["files"]:
                        if (file["kind"], file["type_name"]) == (kind, name):
                            selected.add(file["path"])
        return sorted(selected)

    async def latest(self, kind: str, name: str, as_of: int | None = None) -> dict[Any, dict[str, Any]]:
        """Key -> fields, by ``fields_json``, at the head or as of a commit."""
        head = (await self.head())["commit_id"]
        if head == 0:
            return {}
        q_head = head if as_of is None else min(as_of, head)
        found: dict[Any, tuple[int, dict[str, Any]]] = {}
        for path in await self.resolve(kind, name, q_head):
            for row in pq.read_table(io.BytesIO((await self.store.get(path)).body)).to_pylist():
                assert row[f"{kind}_type"] == name
                key = (
                    row["entity_key"] if kind == "entity" else (row["left_key"], row["right_key"], row["instance_key"])
                )
                if row["commit_id"] <= q_head and (key not in found or found[key][0] < row["commit_id"]):
                    found[key] = (row["commit_id"], json.loads(row["fields_json"]))
        return {key: fields for key, (_, fields) in found.items()}


class PlainWriter(PlainReader):
    def __init__(
        self,
        store: Store,
        runtime_id: str = "plain",
        *,
        seed: int = 7,
        index: bool = True,
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        super().__init__(store)
        self.now = now
        self.runtime_id = runtime_id
        self.rng = random.Random(seed)
        self.index = index
        self.version = 1
        """Of the schema that it writes rows under."""
        self.dates = True
        """Manifests say when they were made."""

    def _now(self) -> str:
        return self.now().isoformat(timespec="microseconds")

    async def acquire(self, timeout_s: float = 5.0) -> bool:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + timeout_s
        while True:
            expires = self.now() + timedelta(milliseconds=30_000)
            body = {
                "owner_id": self.runtime_id,
                "acquired_at": self._now(),
                "expires_at": expires.isoformat(),
                "lease_ttl_ms": 30_000,
            }
            payload = json.dumps(body).encode()
            if not isinstance(await self.store.put(LOCK, payload, CREATE), Lost):
                return True
            found = await self.store.find(LOCK)
            if found is None:
                continue
            if self.now() >= datetime.fromisoformat(json.loads(found.body)["expires_at"]) and not isinstance(
                await self.store.put(LOCK, payload, IfMatch(found.version)), Lost
            ):
                return True
            if loop.time() >= deadline:
                return False
            await asyncio.sleep(0.01 + self.rng.uniform(0, 0.02))

    async def release(self) -> None:
        found = await self.store.find(LOCK)
        if found is not None and json.loads(found.body)["owner_id"] == self.runtime_id:
            await self.store.delete(LOCK)

    async def commit(self, data: dict[tuple[str, str], Rows], metadata: dict[str, Any] | None = None) -> int:
        """One commit of these rows, with the lock; its number."""
        assert await self.acquire(), "a plain writer waited five seconds for the lock"
        try:
            for _ in range(20):
                number = await self._attempt(data, metadata or {})
                if number is not None:
                    return number
        finally:
            await self.release()
        raise AssertionError("a plain writer lost twenty races")

    # --- types: a registration moves no head; a migration and a drop are commits, and write their objects after it ---

    async def versions(self, kind: str, name: str) -> list[dict[str, Any]]:
        found = await self.store.find(f"meta/schema/versions/{kind}/{name}.json")
        return [] if found is None else json.loads(found.body)["versions"]

    async def register(self, kind: str, name: str, schema: dict[str, Any], reason: str = "initial") -> int:
        """The next version of a type, which is no longer dropped then."""
        versions = await self.versions(kind, name)
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        made = {"schema_json": text, "schema_hash": sha256(text.encode()).hexdigest(), "created_at": self._now()}
        number = len(versions) + 1
        versions.append({"schema_version_id": number, **made, "runtime_id": self.runtime_id, "reason": reason})
        await self._write_versions(kind, name, versions)
        types = await self.document("meta/schema/types.json", {"entities": [], "relations": []})
        types[FOLDERS[kind]] = sorted({*types[FOLDERS[kind]], name})
        await self._write("meta/schema/types.json", types)
        registry = await self.document("meta/schema/registry.json", {"entity": {}, "relation": {}})
        registry[kind][name] = schema
        await self._write("meta/schema/registry.json", registry)
        dropped = await self.document("meta/schema/dropped.json", {"entity": {}, "relation": {}})
        if dropped[kind].pop(name, None) is not None:
            await self._write("meta/schema/dropped.json", dropped)
        return len(versions)

    async def validate(self, kind: str, name: str, schema: dict[str, Any]) -> int:
        """The version that a session of this writer finds for its class; it refuses any other spelling."""
        versions = await self.versions(kind, name)
        if not versions:
            return await self.register(kind, name, schema)
        text = json.dumps(schema, sort_keys=True, separators=(",", ":"))
        assert versions[-1]["schema_hash"] == sha256(text.encode()).hexdigest(), (versions[-1]["schema_json"], text)
        return int(versions[-1]["schema_version_id"])

    async def migrate(self, kind: str, name: str, schema: dict[str, Any], rows: Rows, *, noted: bool = True) -> int:
        """The rows in the next version, and then the version; the commit's number."""
        assert await self.acquire()
        try:
            self.version = len(await self.versions(kind, name)) + 1
            listed = [{"type_kind": kind, "type_name": name, "to_schema_version_id": self.version}]
            metadata: dict[str, Any] = {"kind": "migration", "migrated_types": listed} if noted else {}
            number = await self._attempt({(kind, name): rows} if rows else {}, metadata)
            assert number is not None
            await self.register(kind, name, schema, "migration")
            return number
        finally:
            await self.release()

    async def drop(self, kind: str, name: str, *, purge: bool = True, noted: bool = True) -> int:
        assert await self.acquire()
        try:
            affected = json.dumps([{"kind": kind, "type_name": name}])
            metadata = {"operation": "schema_drop", "target_type": name, "affected_types": affected} if noted else {}
            number = await self._attempt({}, metadata)
            assert number is not None
            await self.dropped(kind, name, number, purge=purge)
            return number
        finally:
            await self.release()

    async def dropped(self, kind: str, name: str, number: int, *, purge: bool) -> None:
        """What follows the commit of a drop."""
        dropped = await self.document("meta/schema/dropped.json", {"entity": {}, "relation": {}})
        now = self._now()
        dropped[kind][name] = {"commit_id": number, "purged": purge, "updated_at": now}
        await self._write("meta/schema/dropped.json", dropped)
        await self._write_versions(kind, name, [])
        index = {"type_name": name, "max_indexed_commit": number, "entries": []}
        await self.store.put(f"meta/indices/{FOLDERS[kind]}/{name}.json", json.dumps(index).encode(), OVERWRITE)
        types = await self.document("meta/schema/types.json", {"entities": [], "relations": []})
        types[FOLDERS[kind]] = [each for each in types[FOLDERS[kind]] if each != name]
        await self._write("meta/schema/types.json", types)

    async def compact(self, kind: str, name: str) -> None:
        """All files of single commits as one snapshot: section 9.1, without the lock."""
        key = f"meta/indices/{FOLDERS[kind]}/{name}.json"
        index = await self.json(key)
        single = [each for each in index["entries"] if each["min_commit_id"] == each["max_commit_id"]]
        single.sort(key=lambda each: int(each["min_commit_id"]))
        bodies = [(await self.store.get(each["path"])).body for each in single]
        merged = pa.concat_tables([pq.read_table(io.BytesIO(body)) for body in bodies], promote_options="default")
        first, last = single[0]["min_commit_id"], single[-1]["max_commit_id"]
        path = f"snapshots/{FOLDERS[kind]}/{name}-{first}-{last}.parquet"
        sink = io.BytesIO()
        pq.write_table(merged.sort_by([("commit_id", "ascending")]), sink)
        await self.store.put(path, sink.getvalue(), OVERWRITE)
        kept = [each for each in index["entries"] if not first <= each["max_commit_id"] <= last]
        index["entries"] = [*kept, {"min_commit_id": first, "max_commit_id": last, "path": path}]
        await self.store.put(key, json.dumps(index).encode(), OVERWRITE)

    async def document(self, key: str, default: dict[str, Any]) -> dict[str, Any]:
        found = await self.store.find(key)
        return default if found is None else json.loads(found.body)

    async def _write(self, key: str, document: dict[str, Any]) -> None:
        body = {**document, "updated_at": self._now()}
        await self.store.put(key, json.dumps(body).encode(), OVERWRITE)

    async def _write_versions(self, kind: str, name: str, versions: list[dict[str, Any]]) -> None:
        body = {"type_kind": kind, "type_name": name, "versions": versions}
        await self.store.put(f"meta/schema/versions/{kind}/{name}.json", json.dumps(body).encode(), OVERWRITE)

    async def _attempt(self, data: dict[tuple[str, str], Rows], metadata: dict[str, Any]) -> int | None:
        head, version = await self._head_version()
        number, attempt = int(head["commit_id"]) + 1, f"{self.rng.getrandbits(32):08x}"
        files: list[dict[str, Any]] = []
        for (kind, name), rows in data.items():
            path = f"commits/{number}-{attempt}/{FOLDERS[kind]}/{name}.parquet"
            body = plain_parquet(kind, name, rows, number, self.version)
            await self.store.put(path, body, OVERWRITE)
            named = {"kind": kind, "type_name": name, "path": path, "row_count": len(rows)}
            files.append({**named, "schema_version_id": self.version, "content_sha256": sha256(body).hexdigest()})
        path = f"commits/{number}-{attempt}/manifest.json"
        manifest: dict[str, Any] = {
            "commit_id": number,
            "parent_commit_id": head["commit_id"] or None,
            "parent_manifest_path": head["manifest_path"],
            "created_at": self._now(),
            "runtime_id": self.runtime_id,
            "metadata": metadata,
            "files": files,
        }
        if not self.dates:
            del manifest["created_at"]
        await self.store.put(path, json.dumps(manifest).encode(), OVERWRITE)
        following = {
            "commit_id": number,
            "manifest_path": path,
            "updated_at": self._now(),
            "runtime_id": self.runtime_id,
        }
        mode = CREATE if version is None else IfMatch(version)
        if isinstance(await self.store.put("meta/head.json", json.dumps(following).encode(), mode), Lost):
            return None
        if self.index:
            await self._update_indices(
                number, head, {(file["kind"], file["type_name"]): file["path"] for file in files}
            )
        return number

    async def _head_version(self) -> tuple[dict[str, Any], Version | None]:
        found = await self.store.find("meta/head.json")
        if found is None:
            return {"commit_id": 0, "manifest_path": None}, None
        return json.loads(found.body), found.version

    async def _update_indices(self, number: int, previous: dict[str, Any], touched: dict[tuple[str, str], str]) -> None:
        try:
            catalog = await self.json("meta/schema/types.json")
        except NotFound:
            return
        known = [("entity", name) for name in catalog["entities"]] + [
            ("relation", name) for name in catalog["relations"]
        ]
        for kind, name in known:
            key = f"meta/indices/{FOLDERS[kind]}/{name}.json"
            try:
                index = await self.json(key)
            except NotFound:
                index = {"type_name": name, "max_indexed_commit": 0, "entries": []}
            if index["max_indexed_commit"] < previous["commit_id"]:
                for manifest in await self.chain(previous["manifest_path"]):
                    cid = manifest["commit_id"]
                    if cid <= index["max_indexed_commit"]:
                        break
                    for file in manifest["files"]:
                        covered = any(e["min_commit_id"] <= cid <= e["max_commit_id"] for e in index["entries"])
                        if (file["kind"], file["type_name"]) == (kind, name) and not covered:
                            index["entries"].append({"min_commit_id": cid, "max_commit_id": cid, "path": file["path"]})
            if (kind, name) in touched:
                index["entries"].append({"min_commit_id": number, "max_commit_id": number, "path": touched[kind, name]})
            index["max_indexed_commit"] = number
            await self.store.put(key, json.dumps(index).encode(), OVERWRITE)


def plain_parquet(kind: str, name: str, rows: Rows, commit_id: int, version: int = 1) -> bytes:
    columns: dict[str, list[Any]] = {"commit_id": [commit_id] * len(rows), f"{kind}_type": [name] * len(rows)}
    if kind == "entity":
        columns["entity_key"] = [key for key, _ in rows]
    else:
        for place, column in enumerate(("left_key", "right_key", "instance_key")):
            columns[column] = [key[place] for key, _ in rows]
    columns["schema_version_id"] = [version] * len(rows)
    columns["fields_json"] = [json.dumps(fields, sort_keys=True, separators=(",", ":")) for _, fields in rows]
    for field in sorted({field for _, fields in rows for field in fields}):
        values = [fields.get(field) for _, fields in rows]
        wide = any(isinstance(value, int) and abs(value) >= 2**63 for value in values)
        columns[field] = [str(value) for value in values] if wide else values
    sink = io.BytesIO()
    pq.write_table(pa.table(columns), sink)
    return sink.getvalue()
