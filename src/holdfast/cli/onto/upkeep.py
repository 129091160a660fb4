"""``holdfast onto verify|index|compact``: check a store, repair its indexes, merge its files."""

from collections import Counter
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from holdfast.base.errors import NotFound
from holdfast.cli.output import Columns, counted
from holdfast.cli.progress import live
from holdfast.cli.shell import Shell, nearest, noun_app
from holdfast.ontology.maintain.compact import Compacted, Compactor, Outlook
from holdfast.ontology.maintain.leftovers import sweep as sweep_loads
from holdfast.ontology.maintain.reindex import Repair, repair_indexes
from holdfast.ontology.maintain.verify.rules import Report
from holdfast.ontology.maintain.verify.verify import Stage, verify, verify_indexes

index_app = noun_app()


async def verify_store(
    shell: Shell,
    deep: Annotated[bool, typer.Option("--deep", help="Read every data file: hashes, row counts, snapshots.")] = False,
) -> None:
    """Check the whole store: chain, files, indexes, snapshots, leftovers.

    Reads only. Exits with 1 if something is wrong.
    """
    stages = _Stages()
    async with shell.open() as hf, live(shell.out, lambda: stages.line):
        found = await verify(hf.store, deep=deep, watch=stages.watch)
    _show(shell, found)


@index_app.command("verify")
async def verify_index(shell: Shell) -> None:
    """Check the indexes against the chain.

    Distinguishes lag, a missing latest entry and a wrong path. Exits with 1 if a row would be missed.
    """
    stages = _Stages()
    async with shell.open() as hf, live(shell.out, lambda: stages.line):
        found = await verify_indexes(hf.store, watch=stages.watch)
    _show(shell, found)


@index_app.command()
async def repair(
    shell: Shell,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the indexes; without it, show what would change.")
    ] = False,
) -> None:
    """Rewrite indexes that differ from the chain."""
    async with shell.open() as hf:
        found = await repair_indexes(hf.store, hf.ambient, apply=apply)
    if shell.out.as_json:
        shell.out.document({"applied": apply, "repairs": [_repair_document(each) for each in found]})
    elif not found:
        shell.out.line("every index is as it should be")
    else:
        columns: Columns = {
            "kind": lambda each: each.type_id.kind,
            "type": lambda each: each.type_id.name,
            "from commit": lambda each: each.watermark[0],
            "to commit": lambda each: each.watermark[1],
            "entries added": lambda each: len(each.added),
            "entries removed": lambda each: len(each.removed),
        }
        shell.out.table(found, columns)
        if not apply:
            shell.out.note("nothing was written: add --apply")


def _repair_document(each: Repair) -> dict[str, object]:
    return {
        "key": each.key,
        "kind": each.type_id.kind,
        "type_name": each.type_id.name,
        "max_indexed_commit": list(each.watermark),
        "added": [entry.document() for entry in each.added],
        "removed": [entry.document() for entry in each.removed],
    }


class _Stages:
    """The stage that a check is at, as a line."""

    line = ""

    def watch(self, stage: Stage) -> None:
        of = f" of {stage.total:,}" if stage.total else ""
        self.line = f"{stage.name}  {stage.done:,}{of}"


def _show(shell: Shell, report: Report) -> None:
    if shell.out.as_json:
        shell.out.document(report.document())
    else:
        for found in report.findings:
            shell.out.line(f"{found.severity}: {found.rule.name}: {found.key}")
            shell.out.line(f"  {found.message}")
            shell.out.line(f"  remedy: {found.rule.remedy}")
        checked = ", ".join(f"{count:,} {what}" for what, count in report.checked.items())
        severities = Counter(str(found.severity) for found in report.findings)
        findings = ", ".join(f"{count} {severity}" for severity, count in severities.items()) or "no findings"
        shell.out.line(f"commit {report.commit_id}: {findings} ({checked or 'nothing to check'})")
    if not report.good:
        raise typer.Exit(1)


async def compact(
    shell: Shell,
    type_name: Annotated[str | None, typer.Argument(metavar="TYPE", help="Only this type.")] = None,
    apply: Annotated[
        bool, typer.Option("--apply", help="Merge the files; without it, show what would be merged.")
    ] = False,
    whole: Annotated[
        bool, typer.Option("--whole", help="Merge into as few files as possible: more to write, less to read.")
    ] = False,
) -> None:
    """Merge the files of types into few; the files of commits stay.

    Safe beside writers, readers and other compactors.
    """
    line = "reading"
    async with shell.open() as hf:
        compactor = Compactor(hf.store, hf.ambient, whole=whole)
        types = await compactor.types()
        if type_name is not None:
            remedy = nearest(type_name, (each.name for each in types), "the types are")
            types = [each for each in types if each.name == type_name]
            if not types:
                raise NotFound(f"no type {type_name} with rows", remedy=remedy)
        outlooks = [await compactor.outlook(type_id) for type_id in types]
        done: list[Compacted] = []
        removed: list[str] = []
        if apply:
            merges = [each for outlook in outlooks for each in outlook.merges]
            async with live(shell.out, lambda: line):
                for number, merge in enumerate(merges, 1):
                    line = f"merge {number} of {len(merges)}"
                    done.append(await compactor.perform(merge))
                removed = [*await compactor.sweep(types), *await sweep_loads(hf.store)]
    show_compaction(shell, outlooks, done, removed, (compactor.bytes_read, compactor.bytes_written), apply=apply)


def show_compaction(
    shell: Shell,
    outlooks: Sequence[Outlook],
    done: Sequence[Compacted],
    removed: Sequence[str],
    figures: tuple[int, int],
    *,
    apply: bool,
) -> None:
    """``figures`` are the bytes that were read and written."""
    bytes_read, bytes_written = figures
    if shell.out.as_json:
        shell.out.document(
            {
                "applied": apply,
                "planned": [_planned(each) for each in outlooks],
                "rewrites": [_rewrite(each) for each in done],
                "removed": list(removed),
                "bytes_read": bytes_read,
                "bytes_written": bytes_written,
                "write_amplification": amplification(done),
            }
        )
        return
    columns: Columns = {
        "kind": lambda each: each.type_id.kind,
        "type": lambda each: each.type_id.name,
        "files": "files",
        "after": "after",
        "merges": lambda each: len(each.merges),
        "bytes to write": "bytes_to_write",
    }
    shell.out.table(outlooks, columns)
    if not apply:
        shell.out.note("nothing was written: add --apply")
        return
    shell.out.line(
        f"{counted(sum(each.published for each in done), 'snapshot')} published, {len(removed)} old ones removed; "
        f"{bytes_read:,} bytes read, {bytes_written:,} written, "
        f"{amplification(done):.2f} per byte of new rows"
    )


def amplification(done: Sequence[Compacted]) -> float:
    """Bytes written per byte that had not been in a snapshot before."""
    new = sum(piece.size or 0 for each in done for piece in each.merge.pieces if not piece.entry.snapshot)
    written = sum(each.size for each in done)
    return written / new if new else 0.0


def _planned(each: Outlook) -> dict[str, Any]:
    return {
        "kind": each.type_id.kind,
        "type_name": each.type_id.name,
        "files": each.files,
        "files_after": each.after,
        "merges": [
            {
                "min_commit_id": one.first,
                "max_commit_id": one.last,
                "entry_count": len(one.pieces),
                "bytes": one.size,
            }
            for one in each.merges
        ],
    }


def _rewrite(each: Compacted) -> dict[str, Any]:
    kind, name = each.merge.type_id
    return {"kind": kind, "type_name": name, **each.entry.document(), "published": each.published}
