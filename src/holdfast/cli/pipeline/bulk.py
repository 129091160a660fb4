"""``holdfast pipeline load|compact``: files of any size into a type as one commit, and large types into few files."""

import csv
from collections.abc import Iterator
from dataclasses import replace
from enum import StrEnum
from io import TextIOWrapper
from itertools import chain, islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.base.errors import Invalid, NotFound
from holdfast.cli import options
from holdfast.cli.onto.upkeep import show_compaction
from holdfast.cli.pipeline.driver import Conf, Driver, Master, driver
from holdfast.cli.shell import Shell
from holdfast.ontology.bulk.decide import Policy

if TYPE_CHECKING:
    import pyarrow as pa

    from holdfast.ontology.bulk.load import Landed
    from holdfast.ontology.types.typeinfo import TypeInfo


class SourceFormat(StrEnum):
    PARQUET = "parquet"
    CSV = "csv"
    JSON = "json"
    ORC = "orc"


async def load(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="TYPE", help="MODULE:CLASS, or a type that the store knows.")],
    source: Annotated[str, typer.Argument(metavar="PATH", help="A file, or a folder of files; Spark takes URIs too.")],
    style: Annotated[SourceFormat, typer.Option("--format", help="The format of the files.")] = SourceFormat.PARQUET,
    on_conflict: Annotated[
        Policy, typer.Option("--on-conflict", help="What to do with objects that exist with other fields.")
    ] = Policy.ERROR,
    absent: options.Absent = False,
    latest_by: Annotated[
        str | None,
        typer.Option(
            metavar="FIELD",
            help="Of several rows for one object, the stored one included, the one with the greatest value counts.",
        ),
    ] = None,
    retract_column: Annotated[
        str | None,
        typer.Option(metavar="COLUMN", help="A column that says whether a row is written or retracts its object."),
    ] = None,
    instead: Annotated[bool, typer.Option("--instead", help="Retract objects that are not among the rows.")] = False,
    allow_empty: Annotated[
        bool, typer.Option("--allow-empty", help="With --instead: retract everything if there are no rows.")
    ] = False,
    if_head: options.IfHead = None,
    load_id: Annotated[
        str | None, typer.Option(metavar="NAME", help="Commit once under this name, however often the command runs.")
    ] = None,
    master: Master = None,
    conf: Conf = None,
    by: options.By = "",
) -> None:
    """Load files of any size into a type as one commit."""
    from holdfast.ontology.bulk.decide import Rules  # noqa: PLC0415  # loads Arrow, which takes a while
    from holdfast.pipeline.write import rows as loading  # noqa: PLC0415  # as above

    async with driver(shell, master, conf, new=True) as it, it.watch.shown():
        typed = loading.Typed(named=target) if ":" in target else await loading.known_type(it.store, target)
        typed.type_info()
        rules = Rules(on_conflict, absent, latest_by, instead)
        metadata = {"load": {"files": source, "by": by}}
        name, term_ms = f"{by} {it.store.ambient.ids.attempt()}", shell.settings.ontology.s3_lease_ttl_ms
        wanted = loading.LoadOptions(rules, load_id, 0, if_head, metadata, name, term_ms, allow_empty)
        done = await _loaded(it, typed, wanted, (source, style, retract_column))
    tally = done.tally
    shell.out.record(
        {
            "rows": tally.rows,
            "added": tally.added,
            "replaced": tally.replaced,
            "retracted": tally.retracted,
            "skipped": tally.skipped,
            "same": tally.same,
            "older": tally.older,
            "commit_id": done.commit.commit_id if done.commit is not None else None,
            "replayed": done.replayed,
        }
    )


async def _loaded(it: Driver, typed: Any, wanted: Any, files: tuple[str, SourceFormat, str | None]) -> "Landed":
    from holdfast.pipeline.engine import Inline  # noqa: PLC0415  # as above
    from holdfast.pipeline.write.rows import Columns, Staging, land, staged  # noqa: PLC0415  # as above

    store, watch = it.store, it.watch
    name, info, latest_by = store.ambient.ids.unique(), typed.type_info(), wanted.rules.latest_by
    source, style, retract_column = files
    if isinstance(it.engine, Inline):
        batches = _batches(source, style, info)
        first = list(islice(batches, 1))
        columns = Columns.of(first[0].schema.names, info, retract_column, latest_by) if first else Columns()
        parts = [await staged(store, name, info, chain(first, batches), columns)]
    else:
        from holdfast.objects.open import carried  # noqa: PLC0415  # as above
        from holdfast.pipeline.write.frame import staged_files  # noqa: PLC0415  # as above

        watch.say("stage", 0, 0)
        staging = Staging(carried(store.spec), name, typed, Columns(latest_by=latest_by))
        parts, columns = await staged_files(it.engine, staging, source, style.value, retract_column)
    rules = replace(wanted.rules, retracts=columns.change is not None)
    return await land(store, info, name, parts, replace(wanted, rules=rules), it.engine, watch.say)


def _batches(source: str, style: SourceFormat, info: "TypeInfo") -> "Iterator[pa.RecordBatch]":
    """Rows of files without Spark."""
    import pyarrow as pa  # noqa: PLC0415  # a help page needs none of it
    from pyarrow import dataset  # noqa: PLC0415  # as above

    from holdfast.pipeline.write.rows import format_hint  # noqa: PLC0415  # as above

    place = Path(source)
    if not place.exists():
        raise NotFound(f"{source}: there is no such file or folder", remedy="name one, or leave --master out for a URI")
    try:
        if style in (SourceFormat.CSV, SourceFormat.JSON):
            yield from _texts(place, style, info)
        else:
            yield from dataset.dataset(source, format=style.value).to_batches()
    except (pa.ArrowException, OSError, ValueError, TypeError, csv.Error) as error:
        raise Invalid(f"{source}: {error}", remedy=format_hint(source, style.value)) from error


def _texts(place: Path, style: SourceFormat, info: "TypeInfo") -> "Iterator[pa.RecordBatch]":
    """Rows of CSV or of JSON lines, as an import reads them."""
    import pyarrow as pa  # noqa: PLC0415  # as above

    from holdfast.ontology.bulk.texts import csv_tables, json_tables  # noqa: PLC0415  # as above

    files = [each for each in sorted(place.rglob("*")) if each.is_file() and each.name[0] not in "._"]
    tables = csv_tables if style is SourceFormat.CSV else json_tables
    for path in files if place.is_dir() else [place]:
        with pa.input_stream(str(path)) as raw, TextIOWrapper(raw, encoding="utf-8-sig", newline="") as lines:
            for each in tables(lines, info):
                yield from each.to_batches()


async def compact(
    shell: Shell,
    types: Annotated[list[str] | None, typer.Argument(metavar="TYPE", help="Only these types.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Merge the files; without it, show what would be merged.")
    ] = False,
    master: Master = None,
    conf: Conf = None,
) -> None:
    """Merge the files of large types into few, in many tasks; the files of commits stay.

    Safe beside writers, readers and other compactors.
    """
    from holdfast.pipeline.jobs.compact import compact as compacted  # noqa: PLC0415  # as above

    async with driver(shell, master, conf) as it, it.watch.shown():
        done = await compacted(it.store, types or [], engine=it.engine, apply=apply, say=it.watch.say)
    show_compaction(shell, done.outlooks, done.done, done.removed, (done.bytes_read, done.bytes_written), apply=apply)
