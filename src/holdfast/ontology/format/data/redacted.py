"""A data file without what a redaction destroys, and the mark that it then bears. Pure, and blocking.

The mark is the number of the latest commit whose order changed the file's bytes, in the file's own metadata: a state
from before that commit cannot be read from the file.
"""

from collections.abc import Mapping

import pyarrow as pa
import pyarrow.compute as pc

from holdfast.ontology.format.data.footer import REDACTED
from holdfast.ontology.format.data.rows import from_parquet, to_parquet
from holdfast.ontology.format.redactions import Redaction, erased_text, is_erased
from holdfast.ontology.types import names

FOOTER_END = 8
"""Bytes after a Parquet footer: its length, and the format's own mark."""


def mark_in(metadata: Mapping[bytes, bytes] | None) -> int:
    """The mark among the metadata of a file; 0 if it has none."""
    found = (metadata or {}).get(REDACTED, b"0")
    return int(found) if found.isdigit() else 0


def mark_of(body: bytes, path: str) -> int:
    """The mark of a file. Next to nothing for one that has none: its footer is not parsed."""
    footer = int.from_bytes(body[-FOOTER_END:-4], "little") if len(body) > FOOTER_END else 0
    if body.find(REDACTED, max(0, len(body) - FOOTER_END - footer)) < 0:
        return 0
    return mark_in(from_parquet(body, key=path, columns=("commit_id",)).schema.metadata)


def redacted(body: bytes, path: str, redaction: Redaction, commit_id: int) -> bytes | None:
    """The file without what must go, or as it is if that is gone; None if it never had any of it."""
    table = from_parquet(body, key=path)
    commits = table.column("commit_id")
    mask = pc.and_(pc.greater_equal(commits, redaction.first), pc.less_equal(commits, redaction.last))
    if redaction.identity is None:
        left = table.filter(pc.invert(mask))
        return _marked(left, commit_id) if left.num_rows < table.num_rows else body
    keys = names.key_columns(redaction.type_id.kind)
    for name, value in zip(keys, redaction.identity, strict=True):
        mask = pc.and_(mask, pc.equal(table.column(name).cast(pa.string()), value))
    mask = pc.fill_null(mask, False)
    if not pc.any(mask).as_py():
        return None
    texts = table.column("fields_json").to_pylist()
    erased = {number for number, wanted in enumerate(mask.to_pylist()) if wanted}
    if all(is_erased(texts[number]) for number in erased):
        return body
    for number in erased:
        texts[number] = erased_text(redaction.key_field, texts[number])
    for number, column in enumerate(table.schema):
        if column.name == "fields_json":
            table = table.set_column(number, column.name, pa.array(texts, pa.string()))
        elif column.name not in names.SYSTEM_COLUMNS and column.name != redaction.key_field:
            nothing = pa.scalar(None, column.type)
            table = table.set_column(number, column.name, pc.if_else(mask, nothing, table.column(number)))
    if names.RETRACTED not in table.column_names:
        return _marked(table.append_column(names.RETRACTED, mask), commit_id)
    place = table.schema.get_field_index(names.RETRACTED)
    retracted = pc.or_(pc.fill_null(table.column(place), False), mask)
    return _marked(table.set_column(place, names.RETRACTED, retracted), commit_id)


def _marked(table: pa.Table, commit_id: int) -> bytes:
    metadata = table.schema.metadata or {}
    mark = max(commit_id, mark_in(metadata))
    return to_parquet(table.replace_schema_metadata({**metadata, REDACTED: str(mark).encode()}))
