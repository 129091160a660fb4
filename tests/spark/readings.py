"""What the tests of writing write: a type, rows of it, and what a store has of them. And how tasks wait for a test."""

import os
import time
from pathlib import Path
from typing import Any

from holdfast.objects.client import ambient_of
from holdfast.objects.store import Store
from holdfast.ontology import Entity, Field
from holdfast.ontology.chain.chain import Chain
from holdfast.ontology.format.head import read_head
from holdfast.ontology.session import Ontology
from tests.tidy.tree import ROOT

PYTHONPATH = os.pathsep.join((str(ROOT), str(ROOT / "src")))
"""For workers: they run the code of this checkout, and know classes of tests."""


class Reading(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]
    note: Field[str | None] = Field(default=None)


def frame(session: Any, first: int, count: int, *, parts: int = 2, note: str | None = None) -> Any:
    """Rows r0000001 and so on, in so many partitions."""
    shown = "NULL" if note is None else f"'{note}'"
    columns = ("format_string('r%07d', id) AS id", "id * 2 AS value", f"CAST({shown} AS STRING) AS note")
    return session.range(first, first + count, 1, parts).selectExpr(*columns)


async def readings(store: Store) -> dict[str, tuple[int, str | None]]:
    async with Ontology(store, ambient_of(store), [Reading]) as onto:
        return {each.id: (each.value, each.note) for each in await onto.all(Reading)}


async def batches(store: Store) -> list[int]:
    """The numbers of the batches on the chain, the first commit's first."""
    chain, place = Chain(store), (await read_head(store)).place
    found: list[int] = []
    while place is not None:
        manifest = await chain.manifest(place)
        if "sink" in manifest.metadata:
            found.append(manifest.metadata["sink"]["batch"])
        place = manifest.parent
    return found[::-1]


def wait(folder: str | None, name: str) -> None:
    """Say that we are here, and go on when there is a file ``go``. Without a folder, go on at once."""
    if not folder:
        return
    Path(folder, f"{name}.{os.getpid()}").touch()
    while not Path(folder, "go").exists():
        time.sleep(0.02)


def waiting(folder: Path, name: str) -> list[int]:
    """The processes that wait there, or have waited."""
    return [int(path.suffix[1:]) for path in folder.glob(f"{name}.*")]
