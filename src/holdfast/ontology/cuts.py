"""Pieces of large data files: the keys alone, or some columns of some row groups, without fetching the rest.

A piece is put together from the ranges of the object that hold it and from its footer, and is a Parquet file with the
same notes about its columns, so that whoever scans it sees no difference. Row groups stay where they are in the file,
as they are, and nothing lies between them: the footer names those alone, and of columns that are not asked for nobody
reads. Small files come whole: to look for their parts would take more requests than it saves bytes.
"""

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology import names
from holdfast.ontology.arrival import Arrival
from holdfast.ontology.errors import Overtaken
from holdfast.ontology.index import Entry
from holdfast.ontology.loaded import usable
from holdfast.ontology.reach import GAP_BYTES, Extent, chunks_of, divided, together
from holdfast.ontology.rows import column_forms
from holdfast.ontology.shape import Shape
from holdfast.ontology.splice import MARK, Footer
from holdfast.ontology.warm import Warm
from holdfast.sql.duck import MissingFile

WHOLE_BYTES = 1 << 20
"""Files up to this size come whole where only their keys are needed."""
TAIL_BYTES = 64 << 10
PARALLEL = 4
_BATCH_ROWS = 1 << 16


@dataclass(frozen=True)
class Cut:
    """What is wanted of files."""

    keys_of: frozenset[str] = frozenset()
    """Paths of files whose keys and commits are enough."""
    slice: tuple[int, int] = (0, 1)
    """Of the others, which share of the row groups."""
    shape: Shape | None = None
    fields: frozenset[str] | None = None
    """Of these row groups, the fields that are read; None if it may be all."""

    @property
    def system(self) -> set[str]:
        """The columns that every scan may read."""
        keys = () if self.shape is None else self.shape.keys
        return {*keys, "commit_id", "schema_version_id", names.RETRACTED, names.UNTIL}

    def columns(self, schema: pa.Schema) -> list[str] | None:
        """The columns of a file that are read; None for all: a field that a column does not tell is looked up."""
        if self.shape is None or self.fields is None or not column_forms(schema):
            return None
        _, lacking = usable(self.shape, schema)
        return None if lacking & self.fields else [each for each in schema.names if each in self.system | self.fields]


class Cutting(Warm):
    """Warm data of one reader, which may have fetched less than whole files."""

    cut = Cut()

    async def _fetch(self, entry: Entry) -> Arrival:
        size = None if entry.stats is None else entry.stats.size
        of_keys = entry.path in self.cut.keys_of
        sliced = not of_keys and self.cut.slice[1] > 1
        if size is None or not (sliced or (of_keys and size > WHOLE_BYTES)) or self._duck is None:
            return await super()._fetch(entry)
        number = self.number()
        path = self._duck.folder / f"{number}.parquet"
        try:
            piece = await _Piece.of(self._store, entry.path, size, path.with_suffix(".part"))
            await piece.fetch(self.cut, of_keys=of_keys)
        except NotFound as error:
            raise MissingFile(f"{entry.path}: this data file is missing") from error
        await blocking(piece.write, path)
        return Arrival(number, entry, path)


class _Piece:
    """An object's ranges at their own places in a file that has nothing elsewhere."""

    def __init__(self, store: Store, key: str, of: str, path: Path, tail: bytes, footer: pq.FileMetaData) -> None:
        self._store, self._key, self._of, self._path = store, key, of, path
        self._tail, self._footer = tail, footer
        self._of_keys = False
        self._groups: list[int] = []
        self._columns: list[str] | None = None

    @classmethod
    async def of(cls, store: Store, key: str, size: int, path: Path) -> "_Piece":
        begin = max(0, size - TAIL_BYTES)
        part = await store.range(key, begin, size)
        if part.size != size:
            # It was rewritten since its size was noted.
            begin = max(0, part.size - TAIL_BYTES)
            part = await store.range(key, begin, part.size)
        size, tail, of = part.size, part.body, part.of
        length = int.from_bytes(tail[-8:-4], "little") + 8
        if length > len(tail):
            begin = size - min(length, size)
            tail = await _same(store, key, begin, size, of)

        def opened() -> pq.FileMetaData:
            with path.open("wb") as file:
                file.write(MARK)
                file.truncate(size)
                file.seek(begin)
                file.write(tail)
            try:
                return pq.read_metadata(path)
            except (pa.ArrowException, OSError) as error:
                raise Corrupt(f"{key}: not a Parquet file ({error})") from error

        return cls(store, key, of, path, tail, await blocking(opened))

    async def fetch(self, cut: Cut, *, of_keys: bool) -> None:
        """The ranges of what is wanted."""
        count = self._footer.num_row_groups
        number, slices = (0, 1) if of_keys else cut.slice
        self._groups = [each for each in range(count) if each * slices // max(1, count) == number]
        schema = self._footer.schema.to_arrow_schema()
        self._of_keys = of_keys
        self._columns = [each for each in schema.names if each in cut.system] if of_keys else cut.columns(schema)
        wanted = None if self._columns is None else set(self._columns)
        chunks = chunks_of(self._footer)
        some = (each for group in self._groups for each in chunks[group])
        ranges = together((each.extent for each in some if wanted is None or each.column in wanted), GAP_BYTES)

        async def one(part: Extent) -> None:
            body = await _same(self._store, self._key, *part, self._of)
            await blocking(self._put, part.start, body)

        await map_bounded(divided(ranges), one, limit=PARALLEL)

    def _put(self, at: int, body: bytes) -> None:
        with self._path.open("r+b") as file:
            file.seek(at)
            file.write(body)

    def write(self, path: Path) -> None:
        """What was fetched, as a file of its own; where only keys are wanted, fields are empty. Blocking."""
        if self._of_keys:
            self._write_keys(path)
            return
        with self._path.open("ab") as file:
            file.write(Footer.parse(self._tail, self._key).keeping(self._groups))
        self._path.rename(path)

    def _write_keys(self, path: Path) -> None:
        with pq.ParquetFile(self._path) as file:
            kept = [file.schema_arrow.field(name) for name in self._columns or ()]
            schema = pa.schema([*kept, pa.field("fields_json", pa.string())], metadata=file.schema_arrow.metadata)
            with pq.ParquetWriter(path, schema, compression="none") as writer:
                for batch in file.iter_batches(_BATCH_ROWS, row_groups=self._groups, columns=self._columns):
                    columns = [*batch.columns, pa.nulls(batch.num_rows, pa.string())]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))
        self._path.unlink()


async def _same(store: Store, key: str, begin: int, end: int, of: str) -> bytes:
    """A range of the object that was met first: no file is put together from two."""
    part = await store.range(key, begin, end)
    if part.of != of:
        raise Overtaken(f"{key}: it was rewritten while it was read")
    return part.body
