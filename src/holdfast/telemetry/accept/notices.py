"""Keys of accepted manifests from outside: S3 event notifications, and S3 Inventory reports. Pure and blocking.

Both have keys of the whole bucket, so the prefix of the store is removed, and other keys are ignored. Keys in
notifications, and in inventories as CSV, are URL-encoded; in Parquet they are as they are.

Errors: ``Invalid`` for a file that is neither, with what was expected.
"""

import csv
import gzip
import io
import json
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import unquote_plus

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.codec import MALFORMED
from holdfast.base.errors import Invalid
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


def event_keys(body: bytes, name: str, prefix: str = "") -> Iterator[str]:
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


def inventory_keys(inventory: Inventory, body: bytes, name: str, prefix: str = "") -> Iterator[str]:
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
