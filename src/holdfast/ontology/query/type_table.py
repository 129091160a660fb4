"""SQL of one type's rows: its history, or its state at a commit. Pure.

History is the union of the scans of its files. State is, of every identity, the row of its latest commit. Most rows of
a store lie in its oldest or largest file and are still the latest, so they are not grouped: from that file, the base,
come the rows whose identity is in no newer file; the newer files are grouped by identity among themselves. Where key
ranges prove that no identity is in two files there is nothing to decide at all; nor where the rows of a snapshot say
themselves which of them the files after it replace.

    WITH newer AS (SELECT key, max(commit_id) ... GROUP BY key)
    SELECT ... FROM base ANTI JOIN newer  UNION ALL  SELECT ... FROM rest JOIN newer ON key, commit_id

Two files never have the same commit (an index whose entries overlap is not believed), and no file has an identity twice
in one commit, so the latest row is one row.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

from holdfast.ontology.chain.times import Window
from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Source, Sql, TypedColumn, quoted, typed_column
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.query.cache.loaded import Loaded, duck_type
from holdfast.ontology.query.cache.prune import disjoint, may_overlap
from holdfast.ontology.query.cache.scans import SYSTEM, numbered
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.types.expressions.ast import And
from holdfast.ontology.types.typeinfo import TypeInfo

EVERYTHING = And(())


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a type in a window, of these files, as far as ``keys`` (a condition on keys alone) holds."""

    shape: TypeInfo
    files: Sequence[Loaded]
    window: Window
    warm: Warm
    keys: And = EVERYTHING
    settled: bool = False
    """It is known which rows of the large files are replaced by newer files."""
    needed: frozenset[str] | None = None
    """The fields that are read, and ``fields_json``, besides keys and commits; None for all. DuckDB would read all: it
    does not look for unused columns below a union."""

    @cached_property
    def lacking(self) -> frozenset[str]:
        """Fields whose typed column does not tell all."""
        return frozenset().union(*(each.lacking for each in self.files))

    def source(self, alias: str) -> Source:
        """Where the filters find the fields of a row, when the table is called ``alias``."""
        prefix = f"{alias}." if alias else ""
        return Source(f"{prefix}fields_json", self._columns(prefix))

    def _columns(self, prefix: str) -> Mapping[str, TypedColumn]:
        shape = self.shape
        found = {
            name: typed_column(f"{prefix}{quoted(name)}", shape.nodes[name], complete=name not in self.lacking)
            for name in shape.payload
        }
        for name in shape.keys:
            found[name] = TypedColumn(f"{prefix}{name}", "key", complete=True)
        if shape.ends is not None and shape.key_field is not None:
            found[shape.key_field] = found["instance_key"]
        return found

    def only(self, text: str, alias: str) -> "Table":
        """The same table, with no more columns than this SQL names."""
        prefix = f"{alias}." if alias else ""
        names = {name for name in self.shape.payload if f"{prefix}{quoted(name)}" in text}
        if f"{prefix}fields_json" in text:
            names.add("fields_json")
        return replace(self, needed=frozenset(names))

    @cached_property
    def _condition(self) -> Sql | None:
        return compile_where(self.keys, {"own": self.source("")}) if self.keys.terms else None

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that are read: of the system, then of fields."""
        system, payload = SYSTEM, self.shape.payload
        if self.needed is None:
            return (*system, *payload)
        asked = self._condition.text if self._condition is not None else ""
        wanted = {*self.needed, *(name for name in (*payload, "fields_json") if quoted(name) in asked or name in asked)}
        kept = [name for name in system if name in ("commit_id", "_retracted") or name in wanted]
        return (*kept, *(name for name in payload if name in wanted))

    @property
    def listed(self) -> str:
        return ", ".join(map(quoted, (*self.shape.keys, *self.columns)))

    def rows(self, files: Sequence[Loaded] | None = None) -> Sql:
        """Every row of these files in the window; for state, without those that their own file shows to be replaced."""
        files = self.files if files is None else files
        if not files:
            return self._nothing()
        latest_at = None if self.window.history else self.window.upper
        found = self.warm.scans(self.shape, files, self.columns, latest_at)
        scans = [Sql(text, tuple(params)) for text, params in found]
        return self._within(joined(" UNION ALL ", scans), files)

    def _within(self, scan: Sql, files: Sequence[Loaded]) -> Sql:
        """The rows of a scan of these files for which the conditions on keys and commits hold."""
        conditions: list[Sql] = []
        if self._condition is not None:
            conditions.append(self._condition)
        lower, upper = self.window.lower, self.window.upper
        if any(each.entry.first <= lower for each in files):
            conditions.append(Sql(f"commit_id > {lower:d}"))
        if any(each.entry.last > upper for each in files):
            conditions.append(Sql(f"commit_id <= {upper:d}"))
        return fill("SELECT * FROM ({}) WHERE {}", scan, joined(" AND ", conditions)) if conditions else scan

    def state(self) -> Sql:
        """The latest row of every identity in the window, retracted ones included."""
        files = sorted(self.files, key=lambda each: each.entry.first)
        if all(each.single for each in files) and disjoint([each.entry for each in files]):
            return self.rows()
        if self.settled:
            return self._by_number(files)
        certain = 0
        while certain < len(files) and _certain(files[certain], files[certain + 1 :]):
            certain += 1
        if certain == len(files):
            return self.rows()
        rest = self._by_keys(files[certain:])
        return joined(" UNION ALL ", [self.rows(files[:certain]), rest]) if certain else rest

    def _by_number(self, files: Sequence[Loaded]) -> Sql:
        """From each large file the rows that no newer file replaces, and what is latest in the small ones."""
        upper = self.window.upper
        parts: list[Sql] = []
        for number, each in enumerate(files):
            if each.pooled:
                continue
            scan = self._within(numbered(self.shape, each, self.columns, upper), [each])
            newer = [other for other in files[number + 1 :] if other.entry.last > each.through]
            text = f"SELECT {self.listed} FROM ({{}})"
            if newer:
                gone = self.warm.replaced(each, newer, upper)
                parts.append(fill(f"{text} ANTI JOIN ({{}}) USING (file_row_number)", scan, gone))
            else:
                parts.append(fill(text, scan))
        small = [each for each in files if each.pooled]
        if small:
            parts.append(self._latest(small))
        return joined(" UNION ALL ", parts)

    def _latest(self, files: Sequence[Loaded]) -> Sql:
        """What is latest in few rows; without a part of its own, which would make DuckDB read columns in vain."""
        if all(each.single for each in files) and disjoint([each.entry for each in files]):
            return self.rows(files)
        keys = ", ".join(map(quoted, self.shape.keys))
        return fill(
            f"SELECT {self.listed} FROM ({{}}) SEMI JOIN (SELECT {keys}, max(commit_id) AS commit_id "
            f"FROM ({{}}) GROUP BY {keys}) USING ({keys}, commit_id)",
            self.rows(files),
            self.only("", "").rows(files),
        )

    def _by_keys(self, files: Sequence[Loaded]) -> Sql:
        base = files[0] if files[0].single else None
        rest = [each for each in files if each is not base]
        keys = ", ".join(map(quoted, self.shape.keys))
        newer = fill(
            f"SELECT {keys}, max(commit_id) AS commit_id FROM ({{}}) GROUP BY {keys}",
            self.only("", "").rows(rest),
        )
        parts = [fill(f"SELECT {self.listed} FROM ({{}}) JOIN newer USING ({keys}, commit_id)", self.rows(rest))]
        if base is None:
            return fill("SELECT * FROM (WITH newer AS MATERIALIZED ({}) {})", newer, parts[0])
        older = fill(f"SELECT {self.listed} FROM ({{}}) ANTI JOIN newer USING ({keys})", self.rows([base]))
        found = joined(" UNION ALL ", [older, *parts])
        return fill("SELECT * FROM (WITH newer AS MATERIALIZED ({}) {})", newer, found)

    def live(self) -> Sql:
        """What there is at the window's end."""
        if not any(each.retracts for each in self.files):
            return self.state()
        return fill("SELECT * FROM ({}) WHERE NOT _retracted", self.state())

    def malformed(self) -> Sql:
        """Some of the rows whose fields are not JSON: their keys and commits."""
        keys = ", ".join(map(quoted, self.shape.keys))
        rows = self.only("fields_json", "").rows()
        return fill(f"SELECT {keys}, commit_id FROM ({{}}) WHERE NOT json_valid(fields_json) LIMIT 3", rows)

    def wanted(self) -> Sql:
        return self.rows() if self.window.history else self.live()

    def _nothing(self) -> Sql:
        keys = [f"NULL::VARCHAR AS {quoted(name)}" for name in self.shape.keys]
        system = [
            "0::BIGINT AS commit_id",
            "0::BIGINT AS schema_version_id",
            "'' AS fields_json",
            "false AS _retracted",
        ]
        typed = [f"NULL::{duck_type(arrow_type(self.shape.nodes[n]))} AS {quoted(n)}" for n in self.shape.payload]
        return Sql(f"SELECT {', '.join([*keys, *system, *typed])} WHERE false")


def _certain(file: Loaded, newer: Sequence[Loaded]) -> bool:
    """Whether the rows of a file say all there is to know of their ends, whatever these newer files hold."""
    return file.single and all(
        each.entry.last <= file.through or not may_overlap(file.entry, each.entry) for each in newer
    )
