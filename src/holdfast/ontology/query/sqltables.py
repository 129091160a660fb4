"""Types as tables of DuckDB's SQL, without their classes: for the command line and Spark.

    Customer                 the state at the head (or as of the session's moment)
    Customer__history        every row that was ever written, with ``retracted``
    Customer__as_of_12       the state after commit 12

Columns are the fields, the keys of a relation's ends, and ``commit_id``. A field of no simple type is JSON. Each
statement pins one head. Statements only read these tables: any other statement is refused before it runs, and the
sandbox of the database would refuse most of them, too. Users' statements run in a database of their own, which has
nothing but views of these tables over local files. Our statements never run there.
"""

import asyncio
import json
import re
from collections.abc import Iterator, Sequence
from difflib import get_close_matches
from pathlib import PurePath
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import Invalid, NotFound, Refused
from holdfast.objects.store import Store
from holdfast.ontology.chain import catalog
from holdfast.ontology.chain.chain import KnownHead
from holdfast.ontology.chain.history import LATEST, When, commit_at
from holdfast.ontology.filters.operand import Sql, pieces, quoted, text_literal
from holdfast.ontology.format.chainstate import Ledger, fate
from holdfast.ontology.query.cache.warm import Warm
from holdfast.ontology.query.columns import columns_of, naming_misfits
from holdfast.ontology.query.engine import Engine, Snapshot
from holdfast.ontology.query.statement import Need
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo, of_schema
from holdfast.sql.duck import Duck, MalformedJson, SqlFailed

FUNCTIONS = frozenset({"range", "generate_series", "unnest", "json_each", "json_tree", "repeat_row"})
"""Table functions that read nothing but their arguments."""
_NAME = re.compile(r"(?P<type>\w+?)(?:__(?:(?P<history>history)|as_of_(?P<commit>\d+)))?")
_SHOW = re.compile(r"(?:show\s+(?:all\s+)?tables|(?:describe|desc|show)\s+(?P<name>\"?\w+\"?))\s*;?\s*", re.IGNORECASE)
_EXPLAIN = re.compile(r"explain(?:\s+analyze)?\s+", re.IGNORECASE)


class SqlTables:
    """A session of SQL on one store. ``when`` is the moment of tables without a moment of their own."""

    def __init__(self, store: Store, *, memory_limit: str = "256MB", when: When = LATEST) -> None:
        self._warm = Warm(store, memory_limit, files_only=True)
        self._database: Duck | None = None
        self._opening = asyncio.Lock()
        self._when = when
        self.engine = Engine(store, KnownHead(store), self._warm)
        self._shapes: dict[tuple[TypeId, int], TypeInfo] = {}

    async def close(self) -> None:
        await self._warm.close()

    async def __aenter__(self) -> "SqlTables":
        return self

    async def __aexit__(self, *details: object) -> None:
        await self.close()

    async def _duck(self) -> Duck:
        """The database that users' statements run in."""
        session = await self._warm.session()
        async with self._opening:
            if self._database is None:
                self._database = await session.database()
            return self._database

    # --- tables ---

    async def tables(self) -> dict[str, TypeInfo]:
        """The types, by the name of their table."""
        return await self._tables(await self.engine.pinned(), self._when)

    async def _tables(self, ledger: Ledger, when: When) -> dict[str, TypeInfo]:
        """The types at the head, and types that were dropped after ``when`` and not purged."""
        chain, then, gone = self.engine.chain, ledger, set[TypeId]()
        if when.last is not None and ledger.lives:
            upper = await commit_at(when.last, chain, ledger)
            then = await chain.ledger(await chain.at(ledger.place, upper) if upper else None)
            ended = {each: ledger.life_at(each, upper) for each in (*then.heads, *then.schemas)}
            gone = {each for each, life in ended.items() if life is not None and not life.purged}
        found: dict[str, TypeInfo] = {}
        for type_id in sorted({*ledger.heads, *ledger.schemas, *gone}):
            shape = await self._shape(then if type_id in gone else ledger, type_id)
            # An entity and a relation may have the same name.
            name = type_id.name if type_id.name not in found else f"{type_id.name}__relation"
            found[name] = shape
        return found

    async def pinned(self, when: When) -> tuple[Ledger, dict[str, TypeInfo]]:
        """The current head, and the types as of a moment by the name of their table."""
        ledger = await self.engine.pinned()
        return ledger, await self._tables(ledger, when)

    async def _shape(self, ledger: Ledger, type_id: TypeId) -> TypeInfo:
        ref = ledger.schemas.get(type_id)
        key = (type_id, ref.since if ref is not None else -1)
        if key not in self._shapes:
            stored = await catalog.schema_at(self.engine.chain, ledger, type_id)
            self._shapes[key] = of_schema(type_id, stored.schema if stored is not None else {})
        return self._shapes[key]

    # --- statements ---

    async def run(self, text: str) -> pa.Table:
        """The result of one statement, or of the last of several."""
        return (await self.run_all(text))[-1]

    async def run_all(self, text: str) -> list[pa.Table]:
        """The result of each statement. All statements are checked before the first one runs."""
        try:
            return await self._run(text)
        except RecursionError as error:
            raise Invalid(
                "the statement is nested too deeply", remedy="write it in several steps, with WITH"
            ) from error

    async def _run(self, text: str) -> list[pa.Table]:
        duck = await self._duck()
        statements = await blocking(duck.statements, text)
        if not statements:
            raise Invalid("there is no statement", remedy='write one, as in "SELECT count(*) FROM Customer"')
        for statement in statements:
            if (
                statement.kind == "CREATE"
                and re.search(r"\bpivot\b", text, re.IGNORECASE)
                and "create" not in text.lower()
            ):
                # DuckDB would first create an enum of the values.
                raise Refused(
                    "PIVOT without its values would have to write: say which ones become columns",
                    remedy="write them, as in PIVOT Customer ON tier IN ('Gold', 'Std') USING count(*)",
                )
            if not statement.reads:
                raise Refused(
                    f"{statement.kind} statements are refused: these tables can only be read",
                    remedy="use SELECT; to change something, commit it with an ontology session",
                )
        return [await self._one(duck, statement.text) for statement in statements]

    async def _one(self, duck: Duck, text: str) -> pa.Table:
        async def question(snapshot: Snapshot) -> pa.Table:
            tables = await self._tables(snapshot.ledger, self._when)
            shown = _SHOW.fullmatch(text)
            if shown is not None and shown["name"] is None:
                return pa.table({"name": list(tables), "kind": [shape.type_id.kind for shape in tables.values()]})
            wanted, used = (
                ([shown["name"].strip('"')], None) if shown is not None else await blocking(_references, duck, text)
            )
            for name in dict.fromkeys(wanted):
                await self._make_view(duck, name, tables, snapshot, used)
            try:
                with naming_misfits():
                    return await duck.table(text)
            except SqlFailed as error:
                if used is None or isinstance(error, MalformedJson):
                    raise
            # The views had only the named columns. With all of them, DuckDB's error lists candidates.
            for name in dict.fromkeys(wanted):
                await self._make_view(duck, name, tables, snapshot, None)
            return await duck.table(text)

        return await self.engine.ask(question)

    async def _make_view(
        self, duck: Duck, name: str, tables: dict[str, TypeInfo], snapshot: Snapshot, used: frozenset[str] | None
    ) -> None:
        by_name = {each.lower(): each for each in tables}
        parts = _NAME.fullmatch(name)
        if parts is not None and parts["commit"] and parts["type"].lower() not in by_name:
            tables = await self._tables(snapshot.ledger, When(last=int(parts["commit"])))
            by_name = {each.lower(): each for each in tables}
        known = by_name.get(name.lower()) or (by_name.get(parts["type"].lower()) if parts is not None else None)
        if known is None or parts is None:
            if parts is not None and (gone := fate(snapshot.ledger, parts["type"])) is not None:
                raise gone
            close = get_close_matches(name, [*tables, *(f"{each}__history" for each in tables)], n=1)
            listed = ", ".join(tables) or "none yet"
            remedy = f"did you mean {close[0]}?" if close else f"the tables are: {listed}"
            raise NotFound(f"there is no table {name}", remedy=remedy)
        when = self._when
        if name.lower() != known.lower():
            when = When("history") if parts["history"] else When(last=int(parts["commit"]))
        need = Need(tables[known], await snapshot.window(when))
        table = (await snapshot.tables([need]))[need]
        shown = ", ".join(
            text for column, text in columns_of(table, as_json=True) if used is None or column.lower() in used
        )
        shown = shown or "r.commit_id"
        text = _inlined(await self.engine.filled(table.only(shown, "r").wanted()))
        body = f"CREATE OR REPLACE VIEW main.{quoted(name)} AS SELECT {shown} FROM ({text}) r"
        await blocking(duck.execute, body)


def _references(duck: Duck, text: str) -> tuple[list[str], frozenset[str] | None]:
    """The tables that a statement reads, and all columns that it names, in lower case; None for every column.

    ``Refused`` if it calls a function that could read anything else.
    """
    inner = _EXPLAIN.sub("", text, count=1) if _EXPLAIN.match(text) else text
    found = duck.fetch("SELECT json_serialize_sql(?::VARCHAR) AS tree", [inner])
    tree = json.loads(found.column("tree")[0].as_py())
    if tree.get("error"):
        raise Refused(
            f"this kind of statement is refused ({tree.get('error_message', 'it is no SELECT')})",
            remedy="use SELECT, EXPLAIN, DESCRIBE or SHOW TABLES",
        )
    names: list[str] = []
    used: set[str] = set()
    everything = False
    whole: set[str] = set()
    for node, defined in _nodes(tree, frozenset()):
        if node.get("type") == "TABLE_FUNCTION":
            _check_function(str(node.get("function", {}).get("function_name")))
        elif node.get("type") == "BASE_TABLE":
            if node.get("schema_name") not in ("", "main") or node.get("catalog_name"):
                raise Refused(f"{node.get('schema_name')}.{node.get('table_name')} is not a table of this store")
            if node.get("schema_name") or str(node["table_name"]).lower() not in defined:
                names.append(str(node["table_name"]))
            whole |= {str(node["table_name"]).lower(), str(node.get("alias", "")).lower()}
        elif node.get("class") == "COLUMN_REF":
            used |= {str(part).lower() for part in node.get("column_names", ())}
        elif node.get("class") in ("STAR", "POSITIONAL_REFERENCE"):
            everything = True
        if using := node.get("using_columns"):
            used |= {str(part).lower() for part in using}
        if node.get("ref_type") == "NATURAL":
            everything = True
    # The name of a table, used as a column, is a row with all columns.
    everything = everything or bool(used & whole)
    return names, None if everything else frozenset(used)


def _check_function(name: str) -> None:
    if name.lower() not in FUNCTIONS:
        raise Refused(
            f"{name}() reads outside the tables of the store", remedy="read the tables that SHOW TABLES lists"
        )


def _nodes(tree: Any, defined: frozenset[str]) -> Iterator[tuple[dict[str, Any], frozenset[str]]]:
    """Every part of a statement, with the names that WITH defines for it, in lower case."""
    if isinstance(tree, list):
        for value in tree:
            yield from _nodes(value, defined)
    elif isinstance(tree, dict):
        entries = (tree.get("cte_map") or {}).get("map", ())
        for entry in entries:
            # A definition does not see its own name, unless it is recursive.
            name = str(entry["key"]).lower()
            body = entry["value"]["query"]["node"]
            recursive = body.get("type") == "RECURSIVE_CTE_NODE"
            yield from _nodes(entry, defined | {name} if recursive else defined)
            defined |= {name}
        yield tree, defined
        for key, value in tree.items():
            if key != "cte_map":
                yield from _nodes(value, defined)


def _inlined(sql: Sql) -> str:
    """A view has no parameters. Those of our statements are commits, row numbers, and paths of the session."""
    values = [_literal(value) for value in sql.params]
    return "".join(piece for pair in zip(pieces(sql.text, "?"), [*values, ""], strict=True) for piece in pair)


def _literal(value: Any) -> str:
    if isinstance(value, bool) or value is None or not isinstance(value, int | str | PurePath | Sequence):
        raise Invalid(f"{value!r} cannot be part of a view")
    if isinstance(value, int):
        return str(value)
    if isinstance(value, str | PurePath):
        return text_literal(str(value))
    return f"[{', '.join(_literal(each) for each in value)}]"
