"""``holdfast onto export|import``: types to files and back."""

from pathlib import Path
from typing import Annotated, Any

import typer

from holdfast.base.errors import Invalid
from holdfast.cli.onto.change import load_types
from holdfast.cli.onto.shared import By, open_ontology
from holdfast.cli.onto.sql import moment_of
from holdfast.cli.shell import Shell
from holdfast.ontology.bulk.decide import Policy
from holdfast.ontology.bulk.transfer import FileFormat, export_file, import_file
from holdfast.ontology.session import Ontology, Options

Style = Annotated[FileFormat | None, typer.Option("--format", help="The file's format (default: by its extension).")]


async def export_type(
    shell: Shell,
    type_name: Annotated[str, typer.Argument(metavar="TYPE", help="An entity or relation type.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Such as customers.parquet.")],
    style: Style = None,
    as_of: Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")] = None,
) -> None:
    """Export a type to a file: Parquet, Arrow, CSV or JSON lines."""
    async with open_ontology(shell) as store:
        moment = None if as_of is None else moment_of(as_of)
        done = await export_file(store, type_name, path, style=style, as_of=moment)
    shell.out.record({"rows": done.rows, "commit_id": done.commit_id, "file": str(done.path)})


async def import_type(
    shell: Shell,
    target: Annotated[str, typer.Argument(metavar="MODULE:TYPE", help="The class of the objects in the file.")],
    path: Annotated[Path, typer.Argument(metavar="FILE", help="Such as customers.csv.")],
    style: Style = None,
    on_conflict: Annotated[
        Policy, typer.Option("--on-conflict", help="What to do with objects that exist with other fields.")
    ] = Policy.ERROR,
    absent: Annotated[
        bool, typer.Option("--expect-absent", help="Refuse the import if any of its objects exists.")
    ] = False,
    if_head: Annotated[
        int | None, typer.Option(min=0, metavar="ID", help="Commit only if this commit is the head.")
    ] = None,
    by: By = "",
) -> None:
    """Import a file as one commit."""
    forms = load_types(target)
    if len(forms) != 1:
        raise Invalid(f"{target} has {len(forms)} types, and a file has one", remedy="name one class")
    (form,) = forms.values()

    async with open_ontology(shell, new=True) as store:
        options = Options(runtime_id=f"{by} {store.ambient.ids.attempt()}")
        async with Ontology(store, store.ambient, [form.python], options) as onto:
            settings: dict[str, Any] = {"style": style, "on_conflict": on_conflict, "absent": absent}
            metadata = {"import": {"file": path.name, "by": by}}
            done = await import_file(onto, form.python, path, if_head=if_head, metadata=metadata, **settings)
    shell.out.record(
        {
            "rows": done.rows,
            "added": done.added,
            "replaced": done.replaced,
            "skipped": done.skipped,
            "same": done.same,
            "commit_id": done.commit.commit_id if done.commit is not None else None,
        }
    )
