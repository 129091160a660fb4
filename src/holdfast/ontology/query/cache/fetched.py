"""A data file after it was fetched: checked, brought to the read's head, and upgraded, before its rows are loaded.

``Overtaken`` if it has lost payload by a later commit than the read knows; ``OldCopy`` if it is older than its index
entry says, as a copy can be that another process put into the disk cache too late; ``Corrupt`` if it is no data file.
"""

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking
from holdfast.base.errors import Corrupt
from holdfast.ontology.chain.redaction_fence import RedactionFence
from holdfast.ontology.filters.scope import quoted
from holdfast.ontology.format.data.lifespans import ORIGIN, known, lasting_in
from holdfast.ontology.format.data.redacted import mark_in
from holdfast.ontology.format.data.rows import column_forms
from holdfast.ontology.format.data.upgrade import upgrade_file, versions_in
from holdfast.ontology.format.index import Entry
from holdfast.ontology.query.cache.loaded import Loaded, tells_numbers, usable
from holdfast.ontology.types import names
from holdfast.ontology.types.refs import TypeHead
from holdfast.ontology.types.typeinfo import TypeInfo
from holdfast.ontology.types.upgrade import concerned
from holdfast.sql.duck import Duck

SWELL = 3
"""About how much larger rows are in memory than in a file."""


class OldCopy(Corrupt):
    """A file still has payload that its statistics say was destroyed."""

    default_remedy = "it was restored from an older backup: restore it from a later one, or erase or purge again"

    def __init__(self, key: str, mark: int) -> None:
        super().__init__(f"{key}: it is from before commit {mark}, which destroyed payload in it")
        self.key = key


class Arrival(NamedTuple):
    """A fetched file: its number in the session, its index entry, and its path."""

    number: int
    entry: Entry
    path: Path


class Arrived(NamedTuple):
    loaded: Loaded
    swollen: int
    """About how many bytes its rows would take in memory."""
    schema: pa.Schema
    doubtful: bool
    """A plain writer's: an identity may have two rows of one commit."""


class Reader(NamedTuple):
    """The redactions and the chain as a read knows them; the session's database, whose folder takes new files."""

    fence: RedactionFence
    proved: Callable[[TypeHead], bool]
    """Whether the type had such a head."""
    duck: Duck


async def arrived(shape: TypeInfo, arrivals: Sequence[Arrival], reader: Reader) -> list[Arrived]:
    def look(arrival: Arrival) -> Arrived:
        found = _looked_at(shape, arrival, reader)
        return _once(shape, found, arrival.number, reader.duck) if found.doubtful else found

    return await blocking(lambda: [look(each) for each in arrivals])


def _looked_at(shape: TypeInfo, arrival: Arrival, reader: Reader) -> Arrived:
    fence, proved, duck = reader
    folder = duck.folder
    number, entry, path = arrival
    path, mark = _carried_out(shape, arrival, fence, folder)
    try:
        path = _upgraded(shape, number, path, folder)
        with pq.ParquetFile(path) as file:
            schema, footer = file.schema_arrow, file.metadata
            columns, lacking = usable(shape, schema)
            swollen = SWELL * sum(footer.row_group(each).total_byte_size for each in range(footer.num_row_groups))
            rows = footer.num_rows
    except (pa.ArrowException, OSError) as error:
        raise Corrupt(f"{entry.path}: not a Parquet file ({error})") from error
    mark = max(mark, mark_in(schema.metadata))
    fence.check(mark, entry.path)
    if entry.stats is not None and entry.stats.redacted > mark:
        raise OldCopy(entry.path, entry.stats.redacted)
    if missing := {*shape.keys, "commit_id", "fields_json"} - set(schema.names):
        missed = ", ".join(sorted(missing))
        raise Corrupt(f"{entry.path}: not a data file of an ontology, it has no column {missed}")
    unique = not entry.snapshot if entry.stats is None else entry.stats.unique
    retracts = names.RETRACTED in schema.names
    until = names.UNTIL in schema.names and ORIGIN in (schema.metadata or {})
    looked = known(schema.metadata) if until else None
    sure = looked is not None and proved(looked)
    lasting = lasting_in(schema.metadata)
    loaded = Loaded(
        entry=entry,
        rows=rows,
        size=path.stat().st_size,
        columns=columns,
        lacking=lacking,
        unique=unique,
        path=str(path),
        retracts=retracts,
        until=until,
        through=looked.commit_id if sure and looked is not None else entry.last,
        beyond=looked is not None and not sure,
        doubled=until and (lasting is None or lasting.rows != rows),
        stray=names.UNTIL in schema.names and not until,
        numbered=tells_numbers((*schema.names, *shape.payload)),
    )
    return Arrived(loaded, swollen, schema.remove_metadata(), doubtful=not column_forms(schema))


def _once(shape: TypeInfo, found: Arrived, number: int, duck: Duck) -> Arrived:
    """The same without rows that another row of their identity and commit follows."""
    loaded, target = found.loaded, duck.folder / "once" / f"{number}.parquet"
    before = Path(loaded.path or "")
    path, rows = _without_doubles(shape, before, loaded.rows, duck, target)
    if path == before:
        return found
    return found._replace(loaded=replace(loaded, rows=rows, size=path.stat().st_size, path=str(path)))


def _carried_out(shape: TypeInfo, arrival: Arrival, fence: RedactionFence, folder: Path) -> tuple[Path, int]:
    """The file, or a copy without the payload that a pending redaction destroys; and its mark."""
    if not fence.concerns(shape.type_id):
        return arrival.path, 0
    body = arrival.path.read_bytes()
    after = fence.seen(body, arrival.entry.path, shape.type_id)
    if after == body:
        return arrival.path, 0
    return _instead(arrival.path, folder / "redacted" / f"{arrival.number}.parquet", after), fence.number


def _instead(path: Path, target: Path, body: bytes) -> Path:
    target.parent.mkdir(exist_ok=True)
    target.write_bytes(body)
    if path.parent == target.parent.parent:
        path.unlink()
    return target


def _upgraded(shape: TypeInfo, number: int, path: Path, folder: Path) -> Path:
    """The file, or a copy with its rows upgraded to the newest version of the class."""
    if not shape.upgraders or not any(concerned(shape, version) for version in versions_in(path)):
        return path
    target = folder / "upgraded" / f"{number}.parquet"
    upgrade_file(path, target, shape)
    if path.is_relative_to(folder):
        path.unlink()
    return target


def _without_doubles(shape: TypeInfo, path: Path, rows: int, duck: Duck, target: Path) -> tuple[Path, int]:
    """The file, or a copy in which each identity has only the last of its rows of a commit; and the number of rows.

    The file itself is never changed: it may be a hard link to the store's.
    """
    identity = ", ".join(map(quoted, (*shape.keys, "commit_id")))
    found = duck.fetch(f"SELECT count(DISTINCT ({identity})) AS n FROM read_parquet($path)", {"path": str(path)})
    (distinct,) = found.column("n").to_pylist()
    if distinct == rows:
        return path, rows
    with pq.ParquetFile(path) as file:
        table = file.read()
    columns = (table.column(name).to_pylist() for name in (*shape.keys, "commit_id"))
    last = {key: number for number, key in enumerate(zip(*columns, strict=True))}
    target.parent.mkdir(exist_ok=True)
    pq.write_table(table.take(sorted(last.values())), target)
    return target, len(last)
