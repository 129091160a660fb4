"""Merges as work for other processes: a merge as a document and back, and the task that makes its snapshot."""

from collections.abc import Sequence
from typing import Any

from holdfast.base.codec import Document
from holdfast.base.errors import Corrupt
from holdfast.base.ids import Ambient
from holdfast.objects.store import Store
from holdfast.ontology import refs
from holdfast.ontology.compact import Compacted, Compactor, Merge
from holdfast.ontology.index import entry_of
from holdfast.ontology.refs import TypeHead
from holdfast.ontology.tiers import Piece


def merge_document(merge: Merge) -> Document:
    return {"type": list(merge.type_id), "pieces": _documents(merge.pieces), "later": _documents(merge.later)}


def _documents(pieces: Sequence[Piece]) -> list[Document]:
    return [
        {"entry": each.entry.document(), "before": list(each.before), "after": list(each.after), "size": each.size}
        for each in pieces
    ]


def merge_of(document: Document) -> Merge:
    return Merge(refs.type_id(*document["type"]), _pieces(document["pieces"]), _pieces(document["later"]))


def _pieces(documents: Sequence[Document]) -> tuple[Piece, ...]:
    return tuple(
        Piece(entry_of(each["entry"]), _head(each["before"]), _head(each["after"]), each["size"]) for each in documents
    )


def _head(value: list[Any]) -> TypeHead:
    return TypeHead(int(value[0]), int(value[1]), str(value[2]))


async def snapshot_task(store: Store, ambient: Ambient, payload: Document) -> list[Document]:
    """Make the snapshot of one merge, check it and write it. Nothing names it yet: a second one is garbage."""
    compactor = Compactor(store, ambient)
    merge = merge_of(payload["merge"])
    await compactor.begin([merge.type_id])
    made = await compactor.snapshot(merge)
    return [
        {
            "number": payload["number"],
            "entry": made.entry.document(),
            "rows": made.rows,
            "size": made.size,
            "bytes_read": compactor.bytes_read,
        }
    ]


async def made_elsewhere(store: Store, merge: Merge, document: Document) -> Compacted:
    """What a task has made, if it is there as the task says."""
    entry = entry_of(document["entry"])
    found = await store.head(entry.path)
    if found.size != document["size"]:
        raise Corrupt(f"{entry.path}: it has {found.size} bytes, and {document['size']} were written")
    return Compacted(merge, entry, document["rows"], document["size"], published=False)
