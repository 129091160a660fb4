"""The data file of a bulk load, put together from parts that tasks have written; and what a commit asks of it.

Parts are copied byte for byte, some at a time, and the column of the commit is made anew for each attempt.
"""

import hashlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass, field

from holdfast.base.aio import blocking, map_bounded
from holdfast.base.errors import Conflict, Corrupt, NotFound
from holdfast.objects.store import Store
from holdfast.ontology.format import layout
from holdfast.ontology.format.chainstate import Ledger
from holdfast.ontology.format.data.footer import of_footer, stats_of
from holdfast.ontology.format.data.rows import marks
from holdfast.ontology.format.manifest import FileEntry
from holdfast.ontology.format.parquet.ranged import TAIL_BYTES
from holdfast.ontology.format.parquet.splice import Assembly, Footer, Piece, constant, footer_bytes, metadata_of
from holdfast.ontology.format.stats import ROWS_MAX
from holdfast.ontology.types.refs import TypeHead, TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

PIECE_BYTES = 8 << 20
PARALLEL = 8


@dataclass(frozen=True, slots=True)
class Source:
    """A part: staged under its key, or at hand."""

    name: str
    size: int
    body: bytes | None = None


@dataclass
class Prepared:
    """Rows that were decided on a type's head: what a commit asks of a bulk."""

    store: Store
    target: TypeInfo
    head: TypeHead
    generation: int
    parts: Sequence[Source]
    partial: Sequence[str]
    source: str | None
    batch: int
    piece_bytes: int = PIECE_BYTES
    """What is held of the file while it is sent, at most."""
    marks: list[str] = field(default_factory=list)
    """Of the attempts that a file was written for."""
    _footers: dict[str, Footer] = field(default_factory=dict)

    @property
    def type_id(self) -> TypeId:
        return self.target.type_id

    def stands(self, ledger: Ledger, version_id: int) -> bool:
        same = (ledger.head_of(self.type_id), version_id) == (self.head, self.target.version_id)
        return same and (ledger.generation_of(self.type_id) == self.generation or not self.head.files)

    async def place(self, commit_id: int, mark: str) -> FileEntry:
        key = layout.data_key(commit_id, mark, *self.type_id)
        self.marks.append(mark)
        await map_bounded(self.parts, self._footer, limit=PARALLEL)
        assembly, tail = await blocking(self._assembled, commit_id)
        digest = hashlib.sha256()
        whole = bytearray() if assembly.rows <= ROWS_MAX else None

        async def pieces() -> AsyncIterator[bytes]:
            nonlocal digest
            digest = hashlib.sha256()
            if whole is not None:
                whole.clear()
            for piece in assembly.pieces:
                async for some in self._bytes(piece):
                    digest.update(some)
                    if whole is not None:
                        whole.extend(some)
                    yield some

        await self.store.put_stream(key, pieces)
        stats = (
            await blocking(stats_of, bytes(whole), key=key)
            if whole is not None
            else await blocking(lambda: of_footer(metadata_of(tail), assembly.size, unique=True))
        )
        version_id = self.target.version_id or 1
        return FileEntry(self.type_id, key, assembly.rows, version_id, digest.hexdigest(), stats)

    def _assembled(self, commit_id: int) -> tuple[Assembly, bytes]:
        commit = {"commit_id": constant("commit_id", commit_id)}
        assembly = Assembly(self._footers[self.parts[0].name])
        for part in self.parts:
            assembly.add(part.name, self._footers[part.name], replace=commit)
        return assembly, assembly.finish(marks(self.target.columns, self.partial))

    async def _footer(self, part: Source) -> None:
        if part.name in self._footers:
            return
        if part.body is not None:
            tail = part.body
        else:
            tail = await self._range(part.name, max(part.size - TAIL_BYTES, 0), part.size)
            if (wanted := footer_bytes(tail, part.name)) > len(tail):
                tail = await self._range(part.name, part.size - wanted, part.size)
        self._footers[part.name] = await blocking(Footer.parse, tail, part.name)

    async def _bytes(self, piece: Piece) -> AsyncIterator[bytes]:
        if isinstance(piece, bytes):
            yield piece
            return
        held = next((part.body for part in self.parts if part.name == piece.source), None)
        if held is not None:
            yield held[piece.start : piece.end]
            return
        for start in range(piece.start, piece.end, self.piece_bytes):
            yield await self._range(piece.source, start, min(start + self.piece_bytes, piece.end))

    async def _range(self, key: str, start: int, end: int) -> bytes:
        try:
            found = (await self.store.range(key, start, end)).body
        except NotFound as error:
            raise vanished(key) from error
        if len(found) != end - start:
            raise Corrupt(f"{key}: a staged part is shorter than it was")
        return found


def vanished(key: str) -> Conflict:
    return Conflict(f"{key}: what was staged is gone: somebody took this load for dead", remedy="load again")
