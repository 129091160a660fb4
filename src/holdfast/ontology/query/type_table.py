"""SQL of one type's rows: its history, or its state at a commit. Pure.

The rows come from parts: the table of the type, which has small files, and large files that are scanned in place. In
every part a row says until when it was the latest of its identity there, so the state of a part at a commit is

    commit_id <= c AND (_until IS NULL OR _until > c)

and the state of the type is the state of each part without the identities of which another part has a later row:

    SELECT ... FROM file WHERE ... ANTI JOIN (SELECT key FROM table WHERE commit_id <= c) USING (key)  UNION ALL  ...

Nothing is joined where commits or key ranges show that no other part has a later row. Files whose rows have no ends are
one part, which is grouped by identity to find the latest rows.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import groupby

from holdfast.ontology.chain.history import Window
from holdfast.ontology.filters.operand import Source, Sql, TypedColumn, fill, joined, quoted, text_literal, typed_column
from holdfast.ontology.filters.sql import compile_where
from holdfast.ontology.format.data.columns import arrow_type
from holdfast.ontology.query.cache.loaded import (
    NUMBER,
    SYSTEM,
    Loaded,
    duck_type,
    listed_columns,
    reading,
    scan_signature,
)
from holdfast.ontology.query.cache.prune import may_overlap
from holdfast.ontology.query.cache.warm import Held
from holdfast.ontology.types.expressions.ast import And
from holdfast.ontology.types.typeinfo import TypeInfo

EVERYTHING = And(())
SINGLE_FILE_PARTS = 8
"""The maximum number of files that are parts of their own. Joining more of them takes longer than grouping."""
SMALL_BYTES = 256 * 1024
"""Files up to this size are grouped together, too."""


@dataclass(frozen=True)
class Part:
    """Some of the files of a type: in a DuckDB ``table``, or scanned."""

    files: tuple[Loaded, ...]
    table: str | None = None

    @property
    def first(self) -> int:
        return min(each.entry.first for each in self.files)

    @property
    def last(self) -> int:
        return max(each.entry.last for each in self.files)

    @property
    def alone(self) -> bool:
        """Whether it is one file whose rows have ends, or which has one row of each identity."""
        return self.table is None and len(self.files) == 1 and self.files[0].single

    @property
    def through(self) -> int:
        """Rows of another part up to this commit do not replace rows of this part that are the latest in it."""
        return self.last if self.alone else self.first

    def replaced_by(self, other: "Part") -> bool:
        """Whether the other part may have later rows of its identities."""
        return other.last > self.through and any(
            may_overlap(each.entry, one.entry) for each in self.files for one in other.files
        )


@dataclass(frozen=True, eq=False)
class Table:
    """The rows of a type in a window, from these files, that satisfy ``keys``, conditions on keys alone."""

    shape: TypeInfo
    held: Held
    window: Window
    keys: And = EVERYTHING
    needed: frozenset[str] | None = None
    """The columns to read besides keys and commits; None for all. DuckDB does not find unused columns below a union."""

    @property
    def files(self) -> Sequence[Loaded]:
        return self.held.files

    @cached_property
    def lacking(self) -> frozenset[str]:
        """Fields whose typed column is incomplete."""
        tabled = self.held.lacking if any(each.path is None for each in self.files) else frozenset()
        return tabled.union(*(each.lacking for each in self.files))

    def source(self, alias: str) -> Source:
        """Where conditions find the fields of a row, if the alias of the table is ``alias``."""
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
        """The same table with only the columns that this SQL names."""
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
        """The columns to read: system columns, then fields."""
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

    @cached_property
    def _parts(self) -> Sequence[Part]:
        scanned = sorted((each for each in self.files if each.path is not None), key=lambda each: -each.size)
        apart = [each for each in scanned if each.single and each.size > SMALL_BYTES][:SINGLE_FILE_PARTS]
        loose = tuple(each for each in scanned if each not in apart)
        tabled = tuple(each for each in self.files if each.path is None)
        parts = [*(Part((each,)) for each in apart), *([Part(loose)] if loose else [])]
        return [*parts, *([Part(tabled, self.held.table)] if tabled else [])]

    def rows(self) -> Sql:
        """Every row in the window."""
        found = [self.rows_of(part, latest=False) for part in self._parts]
        return joined(" UNION ALL ", found) if found else self._nothing()

    def state(self) -> Sql:
        """The latest row of every identity in the window, retracted ones included."""
        found = [self._state(part) for part in self._parts]
        return joined(" UNION ALL ", found) if found else self._nothing()

    def _state(self, part: Part) -> Sql:
        rows = self.rows_of(part, latest=True)
        keys = ", ".join(map(quoted, self.shape.keys))
        slim = self.only("", "")
        if part.table is None and not part.alone:
            newest = f"SELECT {keys}, max(commit_id) AS commit_id FROM ({{}}) GROUP BY {keys}"
            latest = fill(newest, slim.rows_of(part, latest=True))
            rows = fill(f"SELECT * FROM ({{}}) SEMI JOIN ({{}}) USING ({keys}, commit_id)", rows, latest)
        others = [each for each in self._parts if each is not part and part.replaced_by(each)]
        if not others:
            return rows
        later = joined(" UNION ALL ", [slim.rows_of(each, latest=False) for each in others])
        same = " AND ".join(f"r.{name} = n.{name}" for name in map(quoted, self.shape.keys))
        if any(each.first <= part.last for each in others):
            same += " AND n.commit_id > r.commit_id"
        later = fill(f"SELECT {keys}, commit_id FROM ({{}}) WHERE commit_id > {part.through:d}", later)
        return fill(f"SELECT r.* FROM ({{}}) r ANTI JOIN ({{}}) n ON {same}", rows, later)

    def rows_of(self, part: Part, *, latest: bool) -> Sql:
        """The rows of a part in the window; with ``latest`` those that have not ended."""
        if part.table is None:
            found = [self._scan(files, latest=latest) for files in _scans(part.files)]
        else:
            found = [self._of_table(part.table, latest=latest)]
        conditions: list[Sql] = []
        if self._condition is not None:
            conditions.append(self._condition)
        lower, upper = self.window.lower, self.window.upper
        if part.first <= lower or part.table is not None:
            conditions.append(Sql(f"commit_id > {lower:d}"))
        if part.last > upper or part.table is not None:
            conditions.append(Sql(f"commit_id <= {upper:d}"))
        rows = joined(" UNION ALL ", found)
        return fill("SELECT * FROM ({}) WHERE {}", rows, joined(" AND ", conditions)) if conditions else rows

    def _of_table(self, table: str, *, latest: bool) -> Sql:
        upper = self.window.upper
        conditions = [f"(_until IS NULL OR _until > {upper:d})"] if latest else []
        # The table may have rows of commits that a scanned snapshot covers.
        conditions += [
            f"commit_id NOT BETWEEN {each.entry.first:d} AND {each.entry.last:d}"
            for each in self.files
            if each.path is not None
        ]
        return Sql(f"SELECT {self.listed} FROM {table}{_where(*conditions)}")

    def _scan(self, files: Sequence[Loaded], *, latest: bool) -> Sql:
        """A scan of files with equal signatures."""
        shape, one = self.shape, files[0]
        listed = ", ".join(listed_columns(shape, one, self.columns))
        # Paths of files that are fetched in part are parameters, which declare what is read of them. Others are
        # literals: binding one takes longer than reading the file, and DuckDB imports pandas for its first parameter.
        paths = ", ".join("?::VARCHAR" if each.partly else text_literal(each.path or "") for each in files)
        params = tuple(reading(shape, each, self.columns) for each in files if each.partly)
        ended = ""
        if one.until:
            # Ends after the last commit of a snapshot do not count; older versions have written such ends.
            upper = min(self.window.upper, one.entry.last)
            ended = f"(_until IS NULL OR _until > {upper:d})" if latest else "_until IS DISTINCT FROM commit_id"
        options = f", {NUMBER} = true" if one.within else ""
        options += ", union_by_name = true" if len(files) > 1 else ""
        # DuckDB skips row groups outside of one range of row numbers, but not outside of several joined by OR.
        runs = [f"{NUMBER} BETWEEN {first:d} AND {last:d}" for first, last in one.within] or [""]
        scans = [f"SELECT {listed} FROM read_parquet([{paths}]{options}){_where(run, ended)}" for run in runs]
        return Sql(" UNION ALL ".join(scans), params * len(scans))

    def live(self) -> Sql:
        """The state without retracted rows."""
        if not any(each.retracts for each in self.files):
            return self.state()
        return fill("SELECT * FROM ({}) WHERE NOT _retracted", self.state())

    def malformed(self) -> Sql:
        """Keys and commits of some rows whose fields are not JSON."""
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


def _where(*conditions: str) -> str:
    some = " AND ".join(filter(None, conditions))
    return f" WHERE {some}" if some else ""


def _scans(files: Sequence[Loaded]) -> list[list[Loaded]]:
    """Groups of files that one scan can read."""

    def signature(each: Loaded) -> str:
        return repr(scan_signature(each))

    return [list(group) for _, group in groupby(sorted(files, key=signature), key=signature)]
