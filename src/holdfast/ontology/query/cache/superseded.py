"""Rows of large files that newer files replace, by row number: found once, kept while the session lives.

What is latest is decided by identity, and comparing the keys of a large file with those of all newer ones takes longer
than most questions. Files do not change, so neither do the rows of one that another one replaces: they are kept as
(file, newer file, row, commit of the newer row). A question then leaves out rows by their number alone, for any set of
newer files and up to any commit.
"""

from collections.abc import Sequence

from holdfast.ontology.filters.operand import fill, joined
from holdfast.ontology.filters.scope import Sql, quoted
from holdfast.ontology.query.cache.loaded import Loaded
from holdfast.ontology.query.cache.scans import among, file_rows
from holdfast.sql.duck import Duck

TABLE = "store.replaced"
MOST = 8
"""Large files of one question; with more of them, each compared with all newer ones, grouping is cheaper."""
ROW_BYTES = 64
"""About what a replaced row takes here."""


class Replaced:
    def __init__(self, duck: Duck) -> None:
        self._duck = duck
        self._known: dict[int, set[int]] = {}
        """By file, the newer ones that it was compared with."""

    def lacks(self, older: int, newer: Sequence[int]) -> list[int]:
        """The newer files that it was not compared with yet."""
        known = self._known.get(older, set())
        return [number for number in newer if number not in known]

    def compare(self, older: Loaded, keys: Sequence[str], newer: Sequence[Loaded], pool: tuple[str, set[int]]) -> None:
        """``pool`` is the table of small files, and the numbers of those in it. Blocking."""
        if not self._known:
            self._duck.execute("CREATE SCHEMA IF NOT EXISTS store")
            self._duck.execute(
                f"CREATE TABLE IF NOT EXISTS {TABLE} (older INTEGER, newer INTEGER, place BIGINT, commit_id BIGINT)"
            )
        listed = ", ".join(map(quoted, keys))
        numbered = (
            file_rows(older, listed)
            if older.table is None
            else Sql(f"SELECT {listed}, rowid AS file_row_number FROM {older.table}")
        )
        text = fill(
            f"INSERT INTO {TABLE} SELECT {older.number:d}, n._file, o.file_row_number, n.commit_id "
            f"FROM ({{}}) o JOIN ({{}}) n USING ({listed})",
            numbered,
            _keys_of(newer, keys, *pool),
        )
        self._duck.execute(text.text, list(text.params))
        self._known.setdefault(older.number, set()).update(each.number for each in newer)

    def rows(self, older: int, newer: Sequence[int], upper: int) -> Sql:
        """The numbers of the rows that these files replace up to a commit, as ``file_row_number``."""
        some = "" if self._known.get(older, set()) <= set(newer) else f" AND newer IN ({spans(newer)})"
        return Sql(
            f"SELECT place AS file_row_number FROM {TABLE} WHERE older = {older:d}{some} AND commit_id <= {upper:d}"
        )


def _keys_of(files: Sequence[Loaded], keys: Sequence[str], pool: str, pooled: set[int]) -> Sql:
    """Keys, ``commit_id`` and ``_file`` of their rows."""
    listed = ", ".join(map(quoted, (*keys, "commit_id")))
    small = [each.number for each in files if each.pooled]
    parts: list[Sql] = []
    if small:
        condition, params = among(small, pooled)
        text = f"SELECT {listed}, _file FROM {pool}"
        parts.append(Sql(f"{text} WHERE {condition}" if condition else text, tuple(params)))
    parts += [
        fill(f"SELECT {listed}, {each.number:d} AS _file FROM ({{}})", file_rows(each, listed))
        for each in files
        if each.path is not None
    ]
    return joined(" UNION ALL ", parts)


def spans(numbers: Sequence[int]) -> str:
    """Numbers of files as SQL."""
    return ", ".join(f"{number:d}" for number in sorted(numbers))
