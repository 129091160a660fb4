"""Forcing files to disk, as tests of it do."""

import asyncio

from holdfast.base import disk


async def forced(descriptor: int) -> OSError | None:
    ended: asyncio.Future[OSError | None] = asyncio.get_running_loop().create_future()
    disk.force(descriptor, ended.set_result)
    return await ended
