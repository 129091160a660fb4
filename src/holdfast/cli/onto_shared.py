"""What the commands of ``holdfast onto`` share."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from holdfast.cli.shell import Shell
from holdfast.objects.stack import OpenStore, open_store
from holdfast.ontology import layout


@asynccontextmanager
async def open_ontology(shell: Shell) -> AsyncIterator[OpenStore]:
    settings = shell.settings
    async with open_store(settings.store.uri, settings=settings, immutable=layout.immutable) as store:
        yield store
