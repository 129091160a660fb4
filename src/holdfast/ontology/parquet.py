"""Reads the columns of a data file that the specification fixes, whoever wrote it: identities, commits, fields.

Knows nothing of the user's classes. A file of a plain writer has no ``_retracted`` column: nothing in it is retracted.
"""

import json
from collections.abc import Iterator
from itertools import repeat

from holdfast.base.errors import Corrupt
from holdfast.ontology import names
from holdfast.ontology.delta import Current, Identity, Row, digest
from holdfast.ontology.rows import from_parquet

_WANTED = (*names.ENTITY_KEYS, *names.RELATION_KEYS, "commit_id", "fields_json", names.RETRACTED)
_HABITS = ("\\u", '": ', ', "')
"""How the JSON of other writers differs from ours: escapes and spaces."""


def read_keys(body: bytes, path: str) -> list[tuple[Identity, Current]]:
    return [
        (identity, Current(commit_id, digest(fields_json), retracted, _other_digest(fields_json, path)))
        for identity, commit_id, fields_json, retracted in _read(body, path)
    ]


def read_rows(body: bytes, path: str) -> list[tuple[int, Row]]:
    return [
        (commit_id, Row(identity, fields_json, retracted))
        for identity, commit_id, fields_json, retracted in _read(body, path)
    ]


def _other_digest(fields_json: str, path: str) -> bytes | None:
    """Of the same fields in our spelling, where theirs may be another."""
    if not any(habit in fields_json for habit in _HABITS):
        return None
    try:
        ours = json.dumps(json.loads(fields_json), sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    except ValueError as error:
        raise Corrupt(f"{path}: fields_json is not JSON: {fields_json[:60]!r}") from error
    return None if ours == fields_json else digest(ours)


def _read(body: bytes, path: str) -> Iterator[tuple[Identity, int, str, bool]]:
    table = from_parquet(body, key=path, columns=_WANTED)
    present = set(table.column_names)
    keys = names.ENTITY_KEYS if names.ENTITY_KEYS[0] in present else names.RELATION_KEYS
    if missing := {*keys, "commit_id", "fields_json"} - present:
        raise Corrupt(f"{path}: not a data file of an ontology, it has no column {', '.join(sorted(missing))}")
    identities = zip(*(table.column(name).to_pylist() for name in keys), strict=True)
    commits, fields = (table.column(name).to_pylist() for name in ("commit_id", "fields_json"))
    gone = table.column(names.RETRACTED).to_pylist() if names.RETRACTED in present else repeat(False)
    for identity, commit_id, fields_json, retracted in zip(identities, commits, fields, gone, strict=False):
        yield identity, commit_id, fields_json, bool(retracted)
