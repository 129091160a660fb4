"""``az://`` on Azurite, Microsoft's emulator, which ``make test-azure`` starts, and ``gs://`` on a model.

Laws, races and one test of each domain; and what differs between the stores.
"""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import obstore
import pytest
from obstore.store import AzureStore

from holdfast import runs
from holdfast.base.config import RetrySection, Settings
from holdfast.base.errors import Invalid
from holdfast.base.ids import Ambient
from holdfast.objects.conformance.laws import LAWS, Law
from holdfast.objects.open import backend
from holdfast.objects.store import CREATE, Part, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.integration import test_bus_stores, test_ingest_stores, test_ontology_stores
from tests.integration.google_model import BUCKET, GoogleModel
from tests.integration.racers import Report, race
from tests.integration.run_places import Place
from tests.integration.scripted_server import ScriptedServer
from tests.integration.servers import Azurite
from tests.laws.test_laws import check_law

SETTINGS = Settings(retry=RetrySection(attempts=30, base_ms=1, max_ms=10))
AZURE = pytest.param("az", marks=pytest.mark.azure)


@dataclass(frozen=True)
class Cloud:
    """A store as tests reach it; ``missing`` are addresses at which there is none."""

    spec: StoreSpec
    place: Place
    missing: tuple[StoreSpec, ...]


@asynccontextmanager
async def google() -> AsyncIterator[Cloud]:
    model = GoogleModel()
    async with ScriptedServer(model) as server:
        options = f"?endpoint={server.endpoint}"
        uri = f"gs://{BUCKET}{options}"

        def put(key: str, body: bytes) -> None:
            raise AssertionError("only the cases of Azure put objects behind the client")

        place = Place(uri, lambda key: model.objects[key].body, put, lambda: sorted(model.objects), SETTINGS)
        yield Cloud(StoreSpec.parse(uri), place, (StoreSpec.parse(f"gs://no-such-bucket{options}"),))


@asynccontextmanager
async def azure() -> AsyncIterator[Cloud]:
    server = Azurite(os.environ["HOLDFAST_AZURITE_ENDPOINT"])
    container = f"test-{Ambient.system().ids.unique()}".lower().replace("_", "-")
    server.create_container(container)
    witness: AzureStore = server.client(container)
    uri = f"az://{container}?account={server.account}&endpoint={server.endpoint}"

    def put(key: str, body: bytes) -> None:
        obstore.put(witness, key, body)

    def keys() -> list[str]:
        return sorted(meta["path"] for page in obstore.list(witness) for meta in page)

    place = Place(uri, lambda key: obstore.get(witness, key).bytes().to_bytes(), put, keys, SETTINGS)
    unknown = server.endpoint.removesuffix(server.account) + "unknown"
    missing = (
        StoreSpec.parse(uri.replace(container, "no-such-container")),
        StoreSpec.parse(f"az://{container}?account=unknown&endpoint={unknown}"),
    )
    yield Cloud(StoreSpec.parse(uri), place, missing)


CLOUDS = {"gs": google, "az": azure}
on_both = pytest.mark.parametrize("kind", ["gs", AZURE])


@pytest.fixture(autouse=True)
def credentials(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", Azurite.key)
    monkeypatch.setenv("GOOGLE_BEARER_TOKEN", "token")


@on_both
@pytest.mark.parametrize("law", LAWS, ids=lambda law: law.name)
async def test_law_is_kept(kind: str, law: Law) -> None:
    async with CLOUDS[kind]() as cloud:
        await check_law(cloud.spec, law)


@on_both
async def test_a_range_that_starts_at_the_end_is_empty_and_has_the_size(kind: str) -> None:
    async with CLOUDS[kind]() as cloud, backend(cloud.spec) as store:
        written = await store.put("k", b"0123456789")
        assert isinstance(written, Written)
        assert await store.range("k", 8, 100) == Part(b"89", 10, written.version)
        for start, end in ((10, 11), (10, 20), (50, 60), (3, 3)):
            assert await store.range("k", start, end) == Part(b"", 10, written.version)
        empty = await store.put("empty", b"")
        assert isinstance(empty, Written)
        assert await store.range("empty", 0, 5) == Part(b"", 0, empty.version)


@on_both
async def test_a_missing_bucket_or_account_is_an_error_and_not_an_empty_store(kind: str) -> None:
    async with CLOUDS[kind]() as cloud:
        for spec in cloud.missing:
            async with backend(spec) as store:
                for call in (store.find("k"), store.put("k", b"x", CREATE), store.delete("k"), _keys(store)):
                    with pytest.raises(Invalid, match="no such"):
                        await call


async def _keys(store: Store) -> list[str]:
    return [key async for key in store.keys()]  # noqa: SIM118  # not a dictionary


@on_both
async def test_deletes_ignore_missing_objects(kind: str) -> None:
    async with CLOUDS[kind]() as cloud, backend(cloud.spec) as store:
        for key in ("a", "b", "c"):
            await store.put(key, b"x")
        await store.delete_many(["missing", "a", "also-missing", "b"])
        await store.delete("missing")
        assert cloud.place.keys() == ["c"]


@on_both
async def test_collectors(kind: str) -> None:
    async with CLOUDS[kind]() as cloud:
        await test_ingest_stores.test_of_racing_collectors_one_accepts_each_batch(cloud.place, 2)
        assert any(key.startswith("accepted/") for key in cloud.place.keys())  # noqa: SIM118  # not a dictionary


@on_both
async def test_the_bus(kind: str) -> None:
    async with CLOUDS[kind]() as cloud:
        await test_bus_stores.test_workers_share_events(cloud.place)
        assert any(key.startswith("bus/") for key in cloud.place.keys())  # noqa: SIM118  # not a dictionary


@on_both
async def test_an_ontology(kind: str) -> None:
    async with CLOUDS[kind]() as cloud:
        await test_ontology_stores.test_sessions_that_share_a_store_lose_nothing(cloud.place)
        assert any(key.startswith("commits/") for key in cloud.place.keys())  # noqa: SIM118  # not a dictionary


@on_both
async def test_runs(kind: str) -> None:
    done: list[int] = []

    @runs.workflow()
    async def work(ctx: runs.Context) -> Any:
        for number in range(20):
            await ctx.step("one", done.append, number)
        return await ctx.suspend("go")

    async with CLOUDS[kind]() as cloud, cloud.place.open() as store:
        assert (await work.start(store, run_id="r")).status == "suspended"
        assert (await work.resume(store, "r", "go", 20)).result == 20
        assert done == list(range(20))


@pytest.mark.azure
@pytest.mark.parametrize("update", [False, True], ids=["create", "if-match"])
def test_races_have_one_winner_on_azure(update: bool, tmp_path: Path) -> None:
    async def run() -> tuple[StoreSpec, list[str]]:
        async with azure() as cloud:
            keys = [f"race/{number:02}" for number in range(20)]
            for key in keys if update else ():
                cloud.place.put(key, b"at first")
            return cloud.spec, keys

    spec, keys = asyncio.run(run())
    report = race(spec, keys, tasks=16, update=update, settle=True)
    assert report == Report(won=keys, lost=len(keys) * 15)
