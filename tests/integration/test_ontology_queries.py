"""Queries on real stores: within the memory limit, and without credentials in the database."""

import logging
from dataclasses import replace
from pathlib import Path

import pyarrow as pa
import pytest

import holdfast
from holdfast.base.config import OntologySection, Settings
from holdfast.ontology import Entity, Field
from holdfast.sql.duck import OutOfMemory, SqlFailed
from tests.integration.run_places import Place, s3
from tests.integration.servers import S3Server


class Counter(Entity):
    id: Field[str] = Field(primary_key=True)
    value: Field[int]


class Wide(Entity):
    id: Field[int] = Field(primary_key=True)
    noise: Field[str]


@pytest.fixture
def place(ministack: S3Server) -> Place:
    return s3(ministack)


@pytest.mark.soak
async def test_queries_keep_to_the_memory_limit(tmp_path: Path) -> None:
    """Rows of four times the limit: all of them given out, counted by what is in them, and the first few by order."""
    limit_mb, rows, files = 64, 8_000, 16
    limit = limit_mb * 1_000_000
    settings = Settings(ontology=OntologySection(s3_duckdb_memory_limit=f"{limit_mb}MB"))
    async with holdfast.open(f"file:{tmp_path / 'store'}", settings=settings) as hf, hf.ontology(Wide) as onto:
        size, starts = 0, []
        for number in range(files):
            keys = range(number * rows, (number + 1) * rows)
            noise = [f"{key * 2654435761 % 2**32:08x}" * 128 for key in keys]
            size += sum(map(len, noise)) * 2  # the column, and fields_json
            starts += [each[:8] for each in noise]
            onto.ensure(pa.table({"id": list(keys), "noise": noise}), Wide)
            await onto.commit()
        assert size > 4 * limit
        duck, query = await onto._warm.placed(), onto.query(Wide)

        async def used() -> int:
            found = await duck.table("SELECT sum(memory_usage_bytes)::BIGINT AS n FROM duckdb_memory()")
            return int(found.column("n")[0].as_py())

        seen: set[int] = set()
        async for one in query.stream():
            seen.add(one.id)
            if len(seen) % 10_000 == 1:
                assert await used() <= limit
        assert len(seen) == rows * files
        found = await query.where(Wide.noise.startswith("0")).count()
        assert found == sum(each.startswith("0") for each in starts)
        first = await query.order_by(Wide.noise).limit(10).all()
        assert [one.noise[:8] for one in first] == sorted(starts)[:10]
        assert await used() <= limit
        assert [one.id for one in await query.all()] == sorted(range(rows * files), key=str)
        with pytest.raises(OutOfMemory) as raised:
            await query.order_by(Wide.noise).all()
        assert "s3_duckdb_memory_limit" in str(raised.value.remedy)
        folder = duck.folder
        assert folder.exists()
    assert not folder.exists()


async def test_credentials_stay_outside_of_the_database(ministack: S3Server, caplog: pytest.LogCaptureFixture) -> None:
    """DuckDB reads local files alone: nothing to refresh, and nothing to lose in its settings, its SQL or a log."""
    place = s3(replace(ministack, secret_key="quite-a-secret-8d2f"))  # the server does not look at signatures
    secrets = ["quite-a-secret-8d2f", "s3_secret_access_key", "s3_session_token"]
    answer: list[str] = []
    with caplog.at_level(logging.DEBUG):
        async with holdfast.open(place.uri, settings=place.settings) as hf, hf.ontology(Counter) as onto:
            onto.ensure([Counter(id=f"k{row}", value=row) for row in range(40)])
            await onto.commit()
            query = onto.query(Counter).where(Counter.value > 3)
            for _ in range(3):
                assert await query.count() == 36
            explained = await query.explain(profile=True)
            answer += [str(explained), explained.sql, explained.plan, repr(query), repr(onto), repr(hf)]
            duck = onto._warm.duck
            for listing in ("duckdb_secrets()", "duckdb_settings()", "duckdb_views()"):
                answer.append(str((await duck.table(f"SELECT * FROM {listing}")).to_pylist()))
            assert (await duck.table("SELECT * FROM duckdb_secrets()")).num_rows == 0
            settings = (await duck.table("SELECT name FROM duckdb_settings()")).column("name").to_pylist()
            assert not [name for name in settings if name.startswith("s3_")], "there is not even a setting"
            with pytest.raises(SqlFailed) as failed:
                await duck.table("SELECT * FROM read_parquet('s3://somewhere/x.parquet')")
            answer.append(str(failed.value))
    answer += [record.getMessage() + str(record.__dict__) for record in caplog.records]
    assert not [text for text in answer if any(secret in text for secret in secrets)]
