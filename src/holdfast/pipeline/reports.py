"""Where keys come from that S3 itself names: files of event notifications, and inventory reports.

A location is a path on this machine (a file, or a folder with all its files) or a URI such as
``s3://bucket/path/manifest.json``; settings reach other buckets as they reach the store's own. Keys are handed on group
by group, so that a report of any size passes through.

Errors: ``NotFound`` for a location that is not there. Of notifications, a file that is none or cannot be read is passed
to ``refused``, if there is one, and the others are taken. An inventory is whole or nothing: a part that is missing or
damaged ends it.
"""

import csv
import gzip
import io
import json
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.codec import MALFORMED
from holdfast.base.config import Settings
from holdfast.base.errors import HoldfastError, Invalid, NotFound
from holdfast.objects.open import open_store
from holdfast.objects.store import Store
from holdfast.objects.uri import SCHEMES, StoreSpec
from holdfast.telemetry.accept import layout

WANTED = (layout.ACCEPTED, layout.CONFLICTS)


@dataclass(frozen=True, slots=True)
class Inventory:
    """The contents of a report's manifest.json."""

    bucket: str
    """The bucket that the inventory is of."""
    format: str
    columns: tuple[str, ...]
    files: tuple[str, ...]
    """Keys in the bucket that the report was delivered to."""
    made_ns: int = 0
    """When it was begun; 0 if it does not say."""


def in_store(key: str, prefix: str) -> str | None:
    """The key as the store knows it, if it is one of a manifest or of a conflict."""
    if prefix:
        if not key.startswith(f"{prefix}/"):
            return None
        key = key[len(prefix) + 1 :]
    return key if key.startswith(WANTED) else None


def _created_keys(body: bytes, name: str, prefix: str = "") -> Iterator[str]:
    """Keys that were created, from notifications, one or one per line; also as SNS, SQS and EventBridge wrap them."""
    text = body.decode("utf-8", "replace").strip()
    try:
        documents = [json.loads(text)]
    except ValueError:
        documents = [_line(line, name) for line in text.splitlines() if line.strip()]
    for document in documents:
        for key in _created(document, name):
            found = in_store(key, prefix)
            if found is not None:
                yield found


def _line(line: str, name: str) -> Any:
    try:
        return json.loads(line)
    except ValueError as error:
        raise Invalid(f"{name}: neither a notification of S3 nor one per line ({error})") from error


def _created(document: Any, name: str) -> Iterator[str]:
    if isinstance(document, list):
        for each in document:
            yield from _created(each, name)
        return
    if not isinstance(document, dict):
        raise Invalid(f"{name}: a notification is an object, this is {type(document).__name__}")
    for wrapping in ("Message", "body", "Body"):  # of SNS, of SQS as a function and as a queue hand it out
        if isinstance(document.get(wrapping), str):
            yield from _created(_line(document[wrapping], name), name)
            return
    if document.get("Event") == "s3:TestEvent":
        return
    if isinstance(document.get("Messages"), list):
        yield from _created(document["Messages"], name)
        return
    try:
        yield from _named(document, name)
    except MALFORMED as error:
        raise Invalid(f"{name}: not a notification as S3 writes it ({error!r})") from error


def _named(document: dict[str, Any], name: str) -> Iterator[str]:
    if "Records" in document:
        for record in document["Records"]:
            if "s3" not in record:
                yield from _created(record, name)
            elif str(record["eventName"]).removeprefix("s3:").startswith("ObjectCreated"):
                yield unquote_plus(record["s3"]["object"]["key"])
    elif document.get("source") == "aws.s3":
        if document.get("detail-type") == "Object Created":
            yield document["detail"]["object"]["key"]
    else:
        raise Invalid(f"{name}: no notification of S3: it has no Records")


def read_inventory(body: bytes, name: str) -> Inventory:
    """The manifest.json of an inventory report."""
    try:
        document = json.loads(body)
        kind = str(document["fileFormat"]).lower()
        columns = tuple(each.strip() for each in str(document["fileSchema"]).split(","))
        files = tuple(str(each["key"]) for each in document["files"])
        made_ns = int(document.get("creationTimestamp", 0)) * 1_000_000
        found = Inventory(str(document["sourceBucket"]), kind, columns, files, made_ns)
    except MALFORMED as error:
        raise Invalid(f"{name}: no manifest.json of an S3 Inventory report ({error!r})") from error
    if found.format not in ("csv", "parquet"):
        raise Invalid(f"{name}: an inventory as {document['fileFormat']}", remedy="let S3 write it as CSV or Parquet")
    if found.format == "csv" and "Key" not in found.columns:
        raise Invalid(f"{name}: the inventory has no column Key")
    return found


def _listed_keys(inventory: Inventory, body: bytes, name: str, prefix: str = "") -> Iterator[str]:
    """Keys in one file of a report; what was deleted, and versions that are not the latest, are left out."""
    rows = _csv_rows(inventory, body, name) if inventory.format == "csv" else _parquet_rows(body, name)
    for key, latest, deleted in rows:
        found = in_store(key, prefix)
        if found is not None and latest and not deleted:
            yield found


def _csv_rows(inventory: Inventory, body: bytes, name: str) -> Iterator[tuple[str, bool, bool]]:
    places = {column: place for place, column in enumerate(inventory.columns)}
    try:
        text = gzip.decompress(body) if body[:2] == b"\x1f\x8b" else body
        for row in csv.reader(io.StringIO(text.decode())):
            latest = row[places["IsLatest"]] != "false" if "IsLatest" in places else True
            deleted = row[places["IsDeleteMarker"]] == "true" if "IsDeleteMarker" in places else False
            yield unquote_plus(row[places["Key"]]), latest, deleted
    except (OSError, EOFError, csv.Error, *MALFORMED) as error:
        raise Invalid(f"{name}: not the file that its manifest.json describes ({error})") from error


def _parquet_rows(body: bytes, name: str) -> Iterator[tuple[str, bool, bool]]:
    try:
        file = pq.ParquetFile(pa.BufferReader(body))
        columns = [each for each in ("key", "is_latest", "is_delete_marker") if each in file.schema_arrow.names]
        for batch in file.iter_batches(columns=columns):
            for row in batch.to_pylist():
                yield row["key"], row.get("is_latest") is not False, row.get("is_delete_marker") is True
    except (pa.ArrowException, *MALFORMED) as error:
        raise Invalid(f"{name}: not the file that its manifest.json describes ({error})") from error


GROUP = 20_000
Refused = Callable[[HoldfastError], None]
"""Called with a file that is passed over, and the reason."""
Read = Callable[[str | None], Awaitable[bytes]]


async def event_keys(
    location: str, prefix: str, settings: Settings, refused: Refused | None = None
) -> AsyncIterator[list[str]]:
    """Keys that notifications name, in groups."""
    group: list[str] = []
    async for name, read in _files(location, settings):
        try:
            group += list(_created_keys(await read(), name, prefix))
        except (Invalid, NotFound) as error:
            if refused is None:
                raise
            refused(error)
        while len(group) >= GROUP:
            yield group[:GROUP]
            group = group[GROUP:]
    if group:
        yield group


async def inventory_keys(
    location: str, prefix: str, settings: Settings, bucket: str | None = None
) -> AsyncIterator[list[str]]:
    """Keys that a report lists, in groups; ``location`` is that of its manifest.json. It is ``Invalid`` if it is known
    to be another bucket's.
    """
    group: list[str] = []
    async with _beside(location, settings) as read:
        inventory = _of(bucket, read_inventory(await read(None), location), location)
        for key in inventory.files:
            for found in _listed_keys(inventory, await read(key), key, prefix):
                group.append(found)
                if len(group) >= GROUP:
                    yield group
                    group = []
    if group:
        yield group


async def inventory_made_ns(location: str, settings: Settings, bucket: str | None = None) -> int:
    """When the report at ``location`` was begun, by S3's clock."""
    async with _beside(location, settings) as read:
        return _of(bucket, read_inventory(await read(None), location), location).made_ns


def bucket_of(spec: StoreSpec) -> str | None:
    """The bucket of a store as its inventory calls it; None where there is none, or it goes by another name."""
    return spec.place if spec.scheme == "s3" and not spec.place.endswith("-s3alias") else None


def _of(bucket: str | None, inventory: Inventory, name: str) -> Inventory:
    if bucket is not None and inventory.bucket != bucket:
        raise Invalid(
            f"{name}: the inventory of bucket {inventory.bucket}, and the store is in {bucket}",
            remedy="give the report of the store's own bucket",
        )
    return inventory


@asynccontextmanager
async def _beside(location: str, settings: Settings) -> AsyncIterator[Read]:
    """What reads the report's own file (None), and its parts by their keys."""
    spec = StoreSpec.parse(location, settings) if _is_uri(location) else None
    if spec is None or spec.scheme == "file":
        # Parts are named from the root of the bucket; a folder has no such root, so they are looked for around it.
        manifest = Path(location if spec is None else spec.place)
        yield lambda key: _bytes(manifest if key is None else _local(manifest, key))
        return
    async with open_store(replace(spec, prefix=""), any_format=True) as store:
        yield lambda key: _body(store, spec.prefix if key is None else key)


def _local(manifest: Path, key: str) -> Path:
    """A part of a report that was copied from its bucket: below some folder that also holds the report."""
    names = PurePosixPath(key).parts
    for folder in manifest.resolve().parents:
        for begin in range(len(names)):
            path = folder.joinpath(*names[begin:])
            if path.is_file():
                return path
    raise NotFound(f"{manifest}: its part {key} is not beside it", remedy="copy the whole report, folders and all")


async def _files(location: str, settings: Settings) -> AsyncIterator[tuple[str, Callable[[], Awaitable[bytes]]]]:
    """Names, each with what reads it: of ``NotFound`` and ``Invalid`` the others know nothing."""
    if _is_uri(location) and not location.startswith("file:"):
        spec = StoreSpec.parse(location, settings)
        async with open_store(replace(spec, prefix=""), any_format=True) as store:
            found = await store.find(spec.prefix) if spec.prefix else None
            if found is not None:
                yield location, partial(_body, store, spec.prefix)
                return
            async for key in store.keys(f"{spec.prefix}/" if spec.prefix else ""):
                yield key, partial(_body, store, key)
        return
    for path in _paths(Path(location.removeprefix("file:"))):
        yield str(path), partial(_bytes, path)


async def _body(store: Store, key: str) -> bytes:
    return (await store.get(key)).body


async def _bytes(path: Path) -> bytes:
    try:
        return await blocking(path.read_bytes)
    except FileNotFoundError as error:
        raise NotFound(f"{path}: {error.strerror}") from error
    except OSError as error:
        raise Invalid(f"{path}: {error.strerror}", remedy="give a file that can be read") from error


def _paths(path: Path) -> Iterator[Path]:
    if path.is_file():
        yield path
    elif path.is_dir():
        yield from sorted(each for each in path.rglob("*") if each.is_file())
    else:
        raise NotFound(f"{path}: no such file or folder")


def _is_uri(location: str) -> bool:
    scheme, colon, _ = location.partition(":")
    if colon and scheme == "memory":
        raise Invalid(f"{location}: a store in memory holds no report")
    return bool(colon) and scheme in SCHEMES
