"""What the commands of ``holdfast onto`` share."""

import getpass
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches
from typing import Annotated

import typer

from holdfast.base.errors import NotFound
from holdfast.cli.shell import Shell
from holdfast.objects.client import Client
from holdfast.objects.open import open_store
from holdfast.ontology.commit.lock import LockOptions, WriteLock
from holdfast.ontology.format import layout

Token = Annotated[
    str | None, typer.Option(metavar="TOKEN", help="The token of the preview; without it nothing is changed.")
]


def _who(given: str) -> str:
    """The name that is recorded: the user's, unless one is given."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a machine that does not know its users
        return "unknown"


By = Annotated[
    str,
    typer.Option(
        metavar="NAME", help="Who does it, for the record (default: your user name).", callback=_who, show_default=False
    ),
]
Why = Annotated[str, typer.Option(metavar="TEXT", help="The reason; it is recorded.")]


def no_such_type(name: str, known: Iterable[str], *, which: str = "") -> NotFound:
    """``which`` narrows what was looked for, as in `` with rows``."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    listed = f"the types are: {', '.join(names) or 'none yet'}"
    return NotFound(f"no type {name}{which}", remedy=f"did you mean {close[0]}?" if close else listed)


@asynccontextmanager
async def open_ontology(shell: Shell, *, new: bool = False) -> AsyncIterator[Client]:
    """``new``: the command may be the first to write to this store."""
    settings = shell.settings
    uri = settings.store.uri if new else shell.existing_store()
    async with open_store(uri, settings=settings, immutable=layout.immutable) as store:
        yield store


@asynccontextmanager
async def my_turn(store: Client, by: str) -> AsyncIterator[WriteLock]:
    """The write lock, under a name of its own."""
    turn = WriteLock(store, f"{by} {store.ambient.ids.attempt()}", store.ambient, LockOptions())
    try:
        yield turn
    finally:
        await turn.close()
