"""The certificate is read back as it was written and covers one place; the start check sends eight requests."""

import json
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.base.clock import SystemClock
from holdfast.base.config import S3Section, Settings
from holdfast.base.errors import Corrupt, Incompatible, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client
from holdfast.objects.conformance.certificate import (
    CERTIFICATE_KEY,
    Certificate,
    certify,
    read_certificate,
    start_check,
    write_certificate,
)
from holdfast.objects.conformance.laws import BROKEN, KEPT, LAWS, UNJUDGED, Confidence, Effort, Finding
from holdfast.objects.memory import MemoryStore
from holdfast.objects.place import Place
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import FAULTY

ENDPOINT = ("endpoint", "http://127.0.0.1:9000")
SPEC = StoreSpec("s3", "bucket", "team", (ENDPOINT, ("region", "us-east-1")))
AMBIENT = Ambient(SystemClock(), random.Random(7))


def open_over(backend: Store) -> Client:
    return Client(backend, ambient=AMBIENT, retry=RetryPolicy(attempts=3, base_ms=0, max_ms=0), spec=SPEC)


def findings(verdicts: Sequence[str] = (KEPT,) * len(LAWS)) -> list[Finding]:
    return [Finding(law, verdict, f"figure of {law.name}", 0.1) for law, verdict in zip(LAWS, verdicts, strict=True)]


def issued(spec: StoreSpec = SPEC, found: list[Finding] | None = None) -> Certificate:
    found = findings() if found is None else found
    return certify(Place.of(spec), found, Effort(races=16, rounds=200), holdfast_version="1.2.3", ambient=AMBIENT)


async def test_a_certificate_is_read_back_as_it_was_written_and_contains_no_secret() -> None:
    settings = Settings(s3=S3Section(access_key_id="AKIDEXAMPLE", secret_access_key="hunter2"))  # type: ignore[arg-type]  # pydantic makes the SecretStr
    certificate = issued(replace(StoreSpec.parse("s3://bucket/team", settings), options=(ENDPOINT,)))
    store: Store = MemoryStore()
    assert await read_certificate(store) is None
    await write_certificate(store, certificate, AMBIENT)
    assert await read_certificate(store) == certificate
    document = json.loads((await store.get(CERTIFICATE_KEY)).body)
    assert (document["format"], document["version"], len(document["write_id"])) == ("holdfast.certificate", 1, 24)
    assert (document["store"], document["endpoint"]) == ("s3://bucket/team", "http://127.0.0.1:9000")
    assert document["laws"][0] == {"name": LAWS[0].name, "verdict": KEPT, "figure": f"figure of {LAWS[0].name}"}
    assert "AKIDEXAMPLE" not in str(document)
    assert "hunter2" not in str(document)
    for change, error in (
        ({"version": 2}, Incompatible),
        ({"laws": None}, Corrupt),
        ({"races": {"odd": True}}, Corrupt),
    ):
        await store.put(CERTIFICATE_KEY, json.dumps({**document, **change}).encode())
        with pytest.raises(error, match=CERTIFICATE_KEY):
            await read_certificate(store)


def test_a_certificate_covers_the_place_that_it_was_issued_for() -> None:
    certificate = issued()
    assert certificate.covers(Place.of(SPEC))
    for other in ("team?endpoint=http://127.0.0.1:9001", "team", "other?endpoint=http://127.0.0.1:9000"):
        assert not certificate.covers(Place.of(StoreSpec.parse(f"s3://bucket/{other}")))


def test_too_little_evidence_is_refused() -> None:
    with pytest.raises(Refused, match="no law was run"):
        issued(found=[])
    for verdict in (BROKEN, UNJUDGED):
        with pytest.raises(Refused, match=f"no certificate: {LAWS[-1].name} is {verdict}"):
            issued(found=findings([*[KEPT] * (len(LAWS) - 1), verdict]))
    first, *others = findings()
    with pytest.raises(Refused, match=f"{LAWS[0].name} saw only 9 overlapping writes of 10 wanted"):
        issued(found=[replace(first, confidence=Confidence(9, 10)), *others])


class TestStartCheck:
    async def test_it_sends_eight_requests_and_leaves_nothing(self) -> None:
        backend = MemoryStore()
        store = open_over(backend)
        assert "run holdfast doctor --certify" in str(await start_check(store))
        assert store.usage.by_verb == {"put": 4, "get": 3, "delete": 1}
        assert store.usage.requests("put", "start-check") == 4
        assert backend.shelf.objects == {}
        await write_certificate(store, issued(), AMBIENT)
        assert await start_check(store) is None

    @pytest.mark.parametrize(
        ("elsewhere", "described"),
        [
            ("s3://original/team", "s3://original/team at AWS"),
            ("s3://bucket/team", "s3://bucket/team at AWS"),
            ("s3://bucket/team?endpoint=http://127.0.0.1:9001", "s3://bucket/team at http://127.0.0.1:9001"),
        ],
    )
    async def test_a_certificate_of_another_place_does_not_count(self, elsewhere: str, described: str) -> None:
        store = open_over(MemoryStore())
        await write_certificate(store, issued(StoreSpec.parse(elsewhere)), AMBIENT)
        advice = str(await start_check(store))
        assert advice.startswith("s3://bucket/team at http://127.0.0.1:9000 has not been examined")
        assert f"its certificate was issued for {described}" in advice

    @pytest.mark.parametrize(
        ("fault", "evidence"),
        [
            ("ignores conditions", "a second create of one key was not refused"),
            ("ignores if-match", "an if-match on a stale version was not refused"),
            ("sends no etag", "an if-match on a stale version was not refused"),
            ("always answers 412", "the store refuses a condition that holds"),
        ],
    )
    async def test_a_store_without_conditions_is_refused(self, fault: str, evidence: str) -> None:
        backend = FAULTY[fault][0]()()
        with pytest.raises(Refused, match=f"^s3://bucket/team: .*{evidence}") as caught:
            await start_check(open_over(backend))
        assert "run holdfast doctor" in str(caught.value.remedy)
        assert backend.shelf.objects == {}

    async def test_a_refused_write_that_changes_the_bytes_is_noticed(self) -> None:
        class WritesAndRefuses(MemoryStore):
            async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
                outcome = await super().put(key, body, mode)
                if isinstance(outcome, Lost):
                    await super().put(key, b"changed: " + body)
                return outcome

        with pytest.raises(Refused, match="a second create of one key was not refused"):
            await start_check(open_over(WritesAndRefuses()))
