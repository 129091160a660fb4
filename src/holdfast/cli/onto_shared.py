"""What the commands of ``holdfast onto`` share."""

from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager
from difflib import get_close_matches

from holdfast.base.errors import NotFound
from holdfast.cli.shell import Shell
from holdfast.objects.stack import OpenStore, open_store
from holdfast.ontology import layout


def no_such_type(name: str, known: Iterable[str], *, which: str = "") -> NotFound:
    """``which`` narrows what was looked for, as in `` with rows``."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    listed = f"the types are: {', '.join(names) or 'none yet'}"
    return NotFound(f"there is no type {name}{which}", remedy=f"did you mean {close[0]}?" if close else listed)


@asynccontextmanager
async def open_ontology(shell: Shell) -> AsyncIterator[OpenStore]:
    settings = shell.settings
    async with open_store(settings.store.uri, settings=settings, immutable=layout.immutable) as store:
        yield store
