"""What the commands on runs share: the open store, the words for a run and its statuses."""

from collections.abc import AsyncIterator, Collection, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from difflib import get_close_matches
from typing import Annotated, get_args

import typer

from holdfast.base.errors import Invalid
from holdfast.cli.shell import Shell
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.runs import layout
from holdfast.runs.journal.state import FINISHED, Status

STATUSES = tuple(status for status in get_args(Status) if status not in ("new", "deleted"))
"""What a run can be and still be found."""

ENDED: frozenset[str] = FINISHED - {"deleted"}

RunId = Annotated[str, typer.Argument(metavar="RUN_ID", help="The run's id.")]

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


@asynccontextmanager
async def open_runs(shell: Shell) -> AsyncIterator[Client]:
    """The store of ``--store``, with segments and payloads cached on disk where the settings ask for it."""
    settings = shell.settings
    async with open_store(shell.existing_store(), settings=settings, immutable=layout.immutable) as store:
        yield store


def check_choice(what: str, wanted: Sequence[str], known: Collection[str]) -> list[str] | None:
    """The words, if all are known; None for none."""
    for word in wanted:
        if word not in known:
            near = get_close_matches(word, known, n=1)
            hint = f"did you mean {near[0]}?" if near else f"use one of {', '.join(sorted(known))}"
            raise Invalid(f"there is no {what} {word!r}", remedy=hint)
    return list(wanted) or None


def moment(time_ns: int | None) -> datetime | None:
    return None if time_ns is None else _EPOCH + timedelta(microseconds=time_ns // 1000)
