"""What sends telemetry, as entities and relations with history: agents, hosts, metrics, series.

A census is made for each hour of sample time. What was seen in one of the last hours (the *window*) exists; what was
not is retracted. An entity that is still sent does not change, so an hour without arrivals and departures costs one
row, and "which hosts stopped emitting X since commit N" is one query::

    written = await onto.query(Emits).where(Emits.right_key == "node_load1").history_since(n).all()
    stopped = [one for one in written if meta(one).retracted]

``Census`` says up to which hour it was taken and from which generations of the index. It is part of the same commit as
the changes that follow from it, and expects the census that was read: repeating an hour changes nothing, and a driver
that is late gets ``Conflict`` and has changed nothing.

The host of a series is its label ``host``, or its agent if it has no such label. In the store the types are called
``FleetHost`` and so on: a census retracts what it has not seen, so it must never share a type with a user.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

import pyarrow as pa

from holdfast.base.aio import blocking
from holdfast.base.errors import check
from holdfast.ontology import Entity, Field, Relation
from holdfast.ontology.commit.commit import Commit
from holdfast.ontology.session import Ontology
from holdfast.ontology.types.model import Mixin
from holdfast.telemetry.rollup.points import SeriesKey

HOST_LABEL = "host"
THE_CENSUS = "census"


class Agent(Entity, name="FleetAgent"):
    """A sender of batches."""

    id: Field[str] = Field(primary_key=True)


class Host(Entity, name="FleetHost"):
    """What is measured."""

    name: Field[str] = Field(primary_key=True)


class Metric(Entity, name="FleetMetric"):
    name: Field[str] = Field(primary_key=True)
    kinds: Field[list[str]]
    """Of its series. More than one is a mistake of a sender."""


class Series(Entity, name="FleetSeries"):
    id: Field[str] = Field(primary_key=True)
    """A hash of everything else."""
    metric: Field[str]
    kind: Field[str]
    agent: Field[str]
    host: Field[str]
    labels: Field[dict[str, str]]


class Runs(Relation[Host, Agent], name="FleetRuns"):
    """On this host runs this agent."""


class Emits(Relation[Host, Metric], name="FleetEmits"):
    """This host emits at least one series of this metric."""


class Sends(Relation[Agent, Series], name="FleetSends"):
    """This agent sends this series."""


class Census(Entity, name="FleetCensus"):
    id: Field[str] = Field(primary_key=True)
    until: Field[datetime]
    """Hours before this one have been counted."""
    generations: Field[dict[str, int]]
    """Hours of the window, and the generation of the index that was read of each."""


TYPES: tuple[type[Mixin], ...] = (Agent, Host, Metric, Series, Runs, Emits, Sends, Census)


@dataclass(frozen=True, slots=True)
class Hour:
    """What a census is taken of: the window that ends with an hour."""

    hour: int
    generations: Mapping[int, int]
    """By hour of the window, this one included: the generation of the index."""

    @property
    def row(self) -> Census:
        return Census(
            id=THE_CENSUS,
            until=_moment(self.hour + 1),
            generations={f"{_moment(hour):%Y-%m-%dT%H}": number for hour, number in sorted(self.generations.items())},
        )


def series_id(key: SeriesKey) -> str:
    digest = hashlib.sha256()
    for text in (key.agent, key.name, key.kind, *(part for pair in key.labels for part in pair)):
        encoded = text.encode()
        digest.update(b"%d:" % len(encoded))
        digest.update(encoded)
    return digest.hexdigest()[:32]


def host_of(key: SeriesKey) -> str:
    return dict(key.labels).get(HOST_LABEL) or key.agent


def tables(series: Iterable[SeriesKey]) -> dict[type[Mixin], pa.Table]:
    """Everything that is there if these series are."""
    keys = sorted(set(series))
    ids, hosts = [series_id(key) for key in keys], [host_of(key) for key in keys]
    kinds: dict[str, set[str]] = {}
    for key in keys:
        kinds.setdefault(key.name, set()).add(key.kind)
    agents = [key.agent for key in keys]
    return {
        Agent: _table(id=sorted(set(agents))),
        Host: _table(name=sorted(set(hosts))),
        Metric: _table(name=list(kinds), kinds=[sorted(each) for each in kinds.values()]),
        Series: _table(
            id=ids,
            metric=[key.name for key in keys],
            kind=[key.kind for key in keys],
            agent=agents,
            host=hosts,
            labels=[dict(key.labels) for key in keys],
        ),
        Runs: _ends(zip(hosts, agents, strict=True)),
        Emits: _ends(zip(hosts, (key.name for key in keys), strict=True)),
        Sends: _ends(zip(agents, ids, strict=True)),
    }


async def taken(onto: Ontology) -> Census | None:
    """The current census."""
    return await onto.get(Census, THE_CENSUS)


def covers(found: Census | None, hour: Hour) -> bool:
    """Whether this hour is counted already, from these generations; or later hours are."""
    if found is None:
        return False
    wanted = hour.row
    return found.until > wanted.until or (found.until == wanted.until and found.generations == wanted.generations)


async def take(onto: Ontology, found: Census | None, hour: Hour, series: Iterable[SeriesKey]) -> Commit | None:
    """Commit what these series of the window say; None if it is counted already.

    ``found`` is the census as it was read before the series were. ``Conflict`` if another one was taken meanwhile: read
    it again and take what is left.
    """
    if covers(found, hour):
        return None
    check(onto.pending == 0, "a census is taken in a session of its own")
    try:
        for python, table in (await blocking(tables, list(series))).items():
            await _queue(onto, python, table)
        onto.ensure(hour.row, expect=found)
        until = hour.row.until.isoformat()
        return await onto.commit(metadata={"census": until})
    finally:
        onto.discard()


async def _queue(onto: Ontology, python: type[Mixin], wanted: pa.Table) -> None:
    """What has come and what has gone. A key says all there is to say of an object, but for the kinds of a metric."""
    names = ["left_key", "right_key"] if issubclass(python, Relation) else wanted.column_names[:1]
    there, keys = _rows(await onto.query(python).select(*names).arrow(), names), _rows(wanted, names)
    known, kept = set(there), set(keys)
    new = wanted if python is Metric else wanted.filter(pa.array([key not in known for key in keys], pa.bool_()))
    if new.num_rows:
        onto.ensure(new, python)
    for key in there:
        if key not in kept:
            onto.retract(python, *key)


def _rows(table: pa.Table, names: list[str]) -> list[tuple[str, ...]]:
    return list(zip(*(table.column(name).to_pylist() for name in names), strict=True))


def _table(**columns: list[Any]) -> pa.Table:
    maps = {name: pa.array(values, _type(name)) for name, values in columns.items()}
    return pa.table(maps)


def _type(name: str) -> pa.DataType:
    if name == "labels":
        return pa.map_(pa.string(), pa.string())
    return pa.list_(pa.string()) if name == "kinds" else pa.string()


def _ends(pairs: Iterable[tuple[str, str]]) -> pa.Table:
    distinct = sorted(set(pairs))
    return _table(left_key=[left for left, _ in distinct], right_key=[right for _, right in distinct])


def _moment(hour: int) -> datetime:
    return datetime.fromtimestamp(hour * 3600, UTC)
