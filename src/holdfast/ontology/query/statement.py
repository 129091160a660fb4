"""Plans the tables that a query needs, and makes one SQL statement over them. Pure.

The ends of a relation are joined: ``LEFT JOIN`` of the state of the entity type at the end of the window, so any
combination of own fields and fields of the ends is one condition. In a query for history the ends, and the entities
that a hop reaches, are those of the window's last commit.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

from holdfast.ontology.chain.history import LATEST, When, Window
from holdfast.ontology.filters.operand import Scope, Source, Sql, fill, joined, quoted
from holdfast.ontology.filters.sql import compile_order, compile_where
from holdfast.ontology.query.cache.prune import conjuncts, paths, split
from holdfast.ontology.query.type_table import Table
from holdfast.ontology.types.expressions.ast import (
    TRUE,
    And,
    Comparison,
    End,
    FieldPath,
    In,
    Order,
    Predicate,
    Text,
)
from holdfast.ontology.types.refs import TypeId
from holdfast.ontology.types.typeinfo import TypeInfo

ENDS: tuple[End, End] = ("left", "right")
MAX_LIMIT = 2**63 - 1
"""The largest LIMIT of SQL. A larger one means all rows."""
ALIASES: dict[End, str] = {"own": "r", "left": "le", "right": "ri"}


@dataclass(frozen=True)
class Ask:
    """A query about one type, as data."""

    shape: TypeInfo
    ends: Mapping[End, TypeInfo]
    """The types of the ends of a relation."""
    where: Predicate = TRUE
    order: tuple[Order, ...] = ()
    limit: int | None = None
    offset: int = 0
    when: When = LATEST
    hydrate: bool = False
    """The answer has the entities at the ends, too."""
    touching: tuple[FieldPath, ...] = ()
    """Fields of the answer. Their ends are joined."""
    origin: "Origin | None" = None
    """Restricts the entities to those that a hop reaches."""


@dataclass(frozen=True)
class Origin:
    """A hop from the entities of a query along a relation."""

    ask: Ask
    relation: TypeInfo
    where: Predicate
    """About the relation's own fields."""
    forward: bool
    """From left to right."""
    least: int = 1
    most: int | None = 1
    """How often the relation is followed; None for any number of times."""


@dataclass(frozen=True, eq=False)
class Need:
    """A table that a query needs: the rows of a type in a window for which a condition may hold."""

    shape: TypeInfo
    span: Window
    predicate: Predicate = TRUE


@dataclass(frozen=True)
class Plan:
    """The tables of a query in a window of commits. Ends and hops are as of its last commit."""

    ask: Ask
    window: Window
    own: Need
    ends: Mapping[End, Need]
    """Of the ends that the query uses."""
    hop: "HopPlan | None" = None

    @property
    def needs(self) -> list[Need]:
        return [self.own, *self.ends.values(), *(() if self.hop is None else self.hop.needs)]


@dataclass(frozen=True)
class HopPlan:
    origin: Origin
    start: Plan
    """Of the query from which the hop starts."""
    edges: Need
    passed: Need | None
    """The entities between the steps of a walk of several steps."""

    @property
    def needs(self) -> list[Need]:
        return [*self.start.needs, self.edges, *(() if self.passed is None else (self.passed,))]


Tables = Mapping[Need, Table]


@dataclass(frozen=True)
class Rows:
    """The FROM and WHERE of a query. A statement adds columns and order."""

    ask: Ask
    window: Window
    table: Table
    scope: Scope
    joined: Mapping[End, Table]
    """The states of the ends that the query uses."""
    conditions: tuple[Sql, ...]

    @property
    def keys(self) -> list[str]:
        return [f"r.{quoted(name)}" for name in self.ask.shape.keys]

    @property
    def identity(self) -> list[str]:
        """The columns that identify a row. They are the last terms of every order."""
        return [*(["r.commit_id"] if self.window.history else []), *self.keys]

    @property
    def limited(self) -> bool:
        """Whether the order decides which rows the answer has."""
        return self.ask.limit is not None or self.ask.offset > 0

    @property
    def order(self) -> Sql:
        """The order of the query, then the identity, so that the order is total."""
        terms = [compile_order(order, self.scope) for order in self.ask.order]
        return joined(", ", [*terms, *map(Sql, self.identity)])

    def key_among(self, columns: Sequence[str]) -> str | None:
        """The key field of an entity, if its column is among these and has the same text as the key."""
        shape, field = self.ask.shape, self.ask.shape.key_field
        if self.window.history or shape.ends is not None or field is None or field in self.table.lacking:
            return None
        return field if shape.forms.get(field) == "text" and f"r.{quoted(field)}" in columns else None

    @property
    def in_one_file(self) -> bool:
        """Whether all rows are in one file of one commit and are asked for in the order of keys.

        Such a file has that order unless a plain writer wrote it.
        """
        plain = not self.ask.order and not self.limited and not self.joined and self.ask.origin is None
        files = self.table.files
        return plain and len(files) == 1 and files[0].path is not None and files[0].entry.first == files[0].entry.last

    def source(self, using: str) -> Sql:
        """FROM and WHERE of a statement that uses the columns in this SQL."""
        text = " ".join([using, *(each.text for each in self.conditions)])
        found = fill("FROM ({}) r", self.table.only(text, "r").wanted())
        for end, other in self.joined.items():
            alias, key = ALIASES[end], self.ask.shape.keys[ENDS.index(end)]
            state = other.only(text, alias).live()
            found = fill(f"{{}} LEFT JOIN ({{}}) {alias} ON {alias}.entity_key = r.{key}", found, state)
        return fill("{} WHERE {}", found, joined(" AND ", self.conditions)) if self.conditions else found

    @property
    def at_most_one(self) -> bool:
        """Whether a condition on the key allows one row of a state at most."""
        return not self.window.history and any(
            isinstance(term, Comparison)
            and (term.operator, term.reading) == ("==", "text")
            and term.path in (FieldPath("own", "entity_key"), FieldPath("own", self.ask.shape.key_field or ""))
            for term in (conjuncts(self.ask.where) if self.ask.shape.ends is None else ())
        )

    def select(self, columns: Sequence[str], *, ordered: bool = True) -> Sql:
        ordered = ordered and not self.at_most_one  # sorting one row takes DuckDB as long as finding it
        order = self.order if ordered else Sql("")
        if ordered and not self.ask.order and not self.limited and (key := self.key_among(columns)) is not None:
            order = Sql(f"r.{quoted(key)}")  # one column less to read
        used = " ".join([*columns, order.text])
        found = fill(f"SELECT {', '.join(columns)} {{}}", self.source(used))
        if ordered:
            found = fill("{} ORDER BY {}", found, order)
        if self.ask.limit is not None:
            found = fill("{} LIMIT {}", found, Sql("CAST(? AS BIGINT)", (min(self.ask.limit, MAX_LIMIT),)))
        if self.ask.offset:
            found = fill("{} OFFSET {}", found, Sql("CAST(? AS BIGINT)", (min(self.ask.offset, MAX_LIMIT),)))
        return found

    @property
    def stored(self) -> list[str]:
        """The columns that objects are made from."""
        columns = [*self.keys, "r.commit_id", "r.fields_json", "r._retracted"]
        if self.ask.hydrate:
            for end in ENDS:
                alias = ALIASES[end]
                columns += [f"{alias}.fields_json AS {end}_fields", f"{alias}.commit_id AS {end}_commit"]
        return columns


def plan(ask: Ask, window: Window) -> Plan:
    state = Window(0, window.upper, history=False)
    touched = {path.end for path in (*paths(ask.where), *(order.path for order in ask.order), *ask.touching)}
    used = [end for end in ENDS if end in ask.ends and (ask.hydrate or end in touched)]
    predicates = {end: TRUE if ask.hydrate else end_predicate(ask.where, end) for end in used}
    ends = {end: Need(ask.ends[end], state, predicate) for end, predicate in predicates.items()}
    hop = None
    if (origin := ask.origin) is not None:
        passed = Need(origin.ask.shape, state) if origin.most != 1 else None
        hop = HopPlan(origin, plan(origin.ask, state), Need(origin.relation, state, origin.where), passed)
    return Plan(ask, window, Need(ask.shape, window, ask.where), ends, hop)


def types_of(ask: Ask) -> list[TypeId]:
    """The types that a query reads."""
    return list(dict.fromkeys(need.shape.type_id for need in plan(ask, Window(0, 0, history=False)).needs))


def rows_of(plan: Plan, tables: Tables) -> Rows:
    ask, table = plan.ask, tables[plan.own]
    others = {end: tables[need] for end, need in plan.ends.items()}
    scope: dict[End, Source] = {"own": table.source("r")}
    scope |= {end: other.source(ALIASES[end]) for end, other in others.items()}
    conditions = [compile_where(term, scope) for term in split(ask.where, ask.shape).rest.terms]
    if plan.hop is not None:
        conditions.append(fill("r.entity_key IN ({})", _reached(plan.hop, tables)))
    return Rows(ask, plan.window, table, scope, others, tuple(conditions))


def _reached(hop: HopPlan, tables: Tables) -> Sql:
    """The keys at the far ends of a hop."""
    origin, start, table = hop.origin, rows_of(hop.start, tables), tables[hop.edges]
    near, far = ("left_key", "right_key") if origin.forward else ("right_key", "left_key")
    rest = split(origin.where, origin.relation).rest
    condition = compile_where(rest, {"own": table.source("r")})
    edges = fill(
        f"SELECT r.{near} AS near, r.{far} AS far FROM ({{}}) r WHERE {{}}",
        table.only(condition.text, "r").live(),
        condition,
    )
    if hop.passed is not None:
        there = tables[hop.passed].only("", "").live()
        edges = fill("SELECT near, far FROM ({}) SEMI JOIN ({}) there ON there.entity_key = far", edges, there)
    first = fill("SELECT far FROM edges WHERE near IN ({})", start.select(["r.entity_key"], ordered=start.limited))
    if hop.passed is None:
        walk = fill("WITH edges AS ({}) SELECT far FROM ({})", edges, first)
    elif origin.most is None:
        walk = fill(
            "WITH RECURSIVE edges AS MATERIALIZED ({}), walk(far) AS "
            "({} UNION SELECT edges.far FROM walk JOIN edges ON edges.near = walk.far) SELECT far FROM walk",
            edges,
            first,
        )
    else:
        walk = fill(
            "WITH RECURSIVE edges AS MATERIALIZED ({}), walk(far, depth) AS (SELECT far, 1 FROM ({}) UNION "
            "SELECT edges.far, depth + 1 FROM walk JOIN edges ON edges.near = walk.far WHERE depth < CAST(? AS INTEGER)"
            ") SELECT far FROM walk WHERE depth >= CAST(? AS INTEGER)",
            edges,
            first,
        )
        walk = Sql(walk.text, (*walk.params, origin.most, origin.least))
    if origin.least == 0:
        begin = start.select(["r.entity_key"], ordered=start.limited)
        return fill("SELECT far FROM ({}) UNION SELECT entity_key FROM ({})", walk, begin)
    return walk


def end_predicate(where: Predicate, end: str) -> Predicate:
    """Conditions on the entity at an end that are false without an entity. They can prune its files."""
    found: list[Predicate] = []
    for term in conjuncts(where):
        plain = isinstance(term, In | Text) or (isinstance(term, Comparison) and term.operator != "!=")
        if plain and isinstance(term, Comparison | In | Text) and term.path.end == end:
            found.append(replace(term, path=FieldPath("own", term.path.field, term.path.steps)))
    return And(tuple(found))
