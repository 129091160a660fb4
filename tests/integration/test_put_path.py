"""How many modules of ``holdfast.objects`` one warm ``Client.put`` passes, worker threads included."""

import sys
import threading
from collections.abc import Iterator
from contextlib import AsyncExitStack, contextmanager
from pathlib import Path
from types import FrameType

import pytest

from holdfast.base.config import S3Section, Settings
from holdfast.objects.open import open_store
from holdfast.objects.store import CREATE, IfMatch, Written
from tests.integration.s3_model import S3Model
from tests.integration.scripted_server import ScriptedServer

MODULES_AT_MOST = {"memory": 4, "file": 8, "s3": 7}


class Calls:
    """The modules of ``holdfast.objects`` whose functions run while it records, in any thread that starts below it."""

    def __init__(self) -> None:
        self.modules: set[str] = set()
        self._recording = False

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        if self._recording and event == "call":
            name = str(frame.f_globals.get("__name__", ""))
            if name.startswith("holdfast.objects."):
                self.modules.add(name)

    @contextmanager
    def recording(self) -> Iterator[None]:
        self._recording = True
        try:
            yield
        finally:
            self._recording = False


@pytest.fixture
def calls() -> Iterator[Calls]:
    """Installed before a store starts its threads: a profile function reaches only threads that start after it."""
    found = Calls()
    before = sys.getprofile()
    threading.setprofile(found)
    sys.setprofile(found)
    try:
        yield found
    finally:
        sys.setprofile(before)
        threading.setprofile(None)


@pytest.mark.parametrize("scheme", MODULES_AT_MOST)
async def test_a_warm_put_passes_few_modules(scheme: str, calls: Calls, tmp_path: Path) -> None:
    async with AsyncExitStack() as open_now:
        settings = Settings(s3=S3Section(access_key_id="any", secret_access_key="any"))  # type: ignore[arg-type]  # pydantic makes the SecretStr
        address = {"memory": "memory:", "file": f"file:{tmp_path / 'store'}"}.get(scheme)
        if address is None:
            server = await open_now.enter_async_context(ScriptedServer(S3Model()))
            address = f"s3://bucket/team?endpoint={server.endpoint}"
        store = await open_now.enter_async_context(open_store(address, settings=settings))
        for number in range(3):  # connections, directories and threads are there afterwards
            await store.put(f"folder/{number}", b"warm", CREATE)
        current = await store.head("folder/2")
        with calls.recording():
            created = await store.put("folder/created", b"one", CREATE)
            changed = await store.put("folder/2", b"two", IfMatch(current.version))
    assert isinstance(created, Written)
    assert isinstance(changed, Written)
    assert len(calls.modules) <= MODULES_AT_MOST[scheme], sorted(calls.modules)
    assert "holdfast.objects.client" in calls.modules
