"""``holdfast onto verify`` and ``holdfast onto index``: what is wrong with a store, and mending what can be mended."""

from collections import Counter
from typing import Annotated

import typer

from holdfast.cli.onto_shared import open_ontology
from holdfast.cli.progress import Checklist, State, Step, live
from holdfast.cli.shell import Shell, noun_app
from holdfast.ontology.maintain.reindex import Repair, repair_indexes
from holdfast.ontology.maintain.verify.findings import Report
from holdfast.ontology.maintain.verify.verify import STAGES, Stage, Watch, verify, verify_indexes

index_app = noun_app()


async def verify_store(
    shell: Shell,
    deep: Annotated[bool, typer.Option("--deep", help="Read every data file: hashes, row counts, snapshots.")] = False,
) -> None:
    """Check the whole store: chain, files, indexes, snapshots, leftovers.

    Reads only. Ends with 1 if something is wrong.
    """
    checklist, watch = _watched()
    async with open_ontology(shell) as store, live(shell.out, checklist):
        found = await verify(store, deep=deep, watch=watch)
    _tell(shell, found)


@index_app.command("verify")
async def verify_index(shell: Shell) -> None:
    """Check the indexes against the chain.

    Lag, a missing latest entry and a wrong path are told apart. Ends with 1 if a row would be missed.
    """
    checklist, watch = _watched()
    async with open_ontology(shell) as store, live(shell.out, checklist):
        found = await verify_indexes(store, watch=watch)
    _tell(shell, found)


@index_app.command()
async def repair(
    shell: Shell,
    apply: Annotated[
        bool, typer.Option("--apply", help="Write the indexes; else only show what would change.")
    ] = False,
) -> None:
    """Make the indexes say what the chain says."""
    async with open_ontology(shell) as store:
        found = await repair_indexes(store, store.ambient, apply=apply)
    if shell.out.as_json:
        shell.out.document({"applied": apply, "repairs": [_repair_document(each) for each in found]})
    elif not found:
        shell.out.line("every index is as it should be")
    else:
        columns = ("kind", "type", "from commit", "to commit", "entries added", "entries removed")
        shell.out.table(
            columns, [(*each.type_id, *each.watermark, len(each.added), len(each.removed)) for each in found]
        )
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


def _watched() -> tuple[Checklist, Watch]:
    steps = {name: Step(name) for name in STAGES}

    def watch(stage: Stage) -> None:
        for name, step in steps.items():
            if name == stage.name:
                break
            step.state = State.GOOD
        step = steps[stage.name]
        step.state = State.RUNNING
        step.detail = f"{stage.done:,} of {stage.total:,}" if stage.total else f"{stage.done:,}"

    return Checklist(list(steps.values())), watch


def _tell(shell: Shell, report: Report) -> None:
    if shell.out.as_json:
        shell.out.document(report.document())
    else:
        for found in report.findings:
            shell.out.line(f"{found.severity.value}: {found.kind}: {found.key}")
            shell.out.line(f"  {found.message}")
            shell.out.line(f"  remedy: {found.remedy}")
        looked = ", ".join(f"{count:,} {what}" for what, count in report.checked.items())
        counts = Counter(found.severity.value for found in report.findings)
        told = ", ".join(f"{count} {severity}" for severity, count in counts.items()) or "no findings"
        shell.out.line(f"commit {report.commit_id}: {told} ({looked or 'nothing to look at'})")
    if not report.good:
        raise typer.Exit(1)
