"""The certificate comes back as it was written and covers one place; the start check costs eight requests."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from holdfast.base import codec
from holdfast.base.clock import SystemClock
from holdfast.base.config import S3Section, Settings
from holdfast.base.errors import Corrupt, Incompatible, Refused
from holdfast.base.ids import Ambient
from holdfast.objects.client import Client, Usage
from holdfast.objects.conformance.certificate import (
    CERTIFICATE_KEY,
    FORMAT_NAME,
    Certificate,
    certify,
    read_certificate,
    start_check,
    write_certificate,
)
from holdfast.objects.conformance.laws import BROKEN, KEPT, LAWS, UNJUDGED, Effort, Finding
from holdfast.objects.memory import MemoryStore
from holdfast.objects.place import Place
from holdfast.objects.retry import RetryPolicy
from holdfast.objects.store import OVERWRITE, Lost, Mode, Store, Written
from holdfast.objects.uri import StoreSpec
from tests.fakes.stores import FAULTY

ENDPOINT = ("endpoint", "http://127.0.0.1:9000")
SPEC = StoreSpec("s3", "bucket", "team", (ENDPOINT, ("region", "us-east-1")))
QUICK = RetryPolicy(attempts=3, base_ms=0, max_ms=0)


def ambient() -> Ambient:
    return Ambient(SystemClock(), random.Random(7))


def open_over(backend: Store, spec: StoreSpec = SPEC) -> Client:
    usage = Usage()
    return Client(backend, ambient=ambient(), retry=QUICK, usage=usage, spec=spec)


def findings(verdicts: Sequence[str] = (KEPT,) * len(LAWS)) -> list[Finding]:
    return [Finding(law, verdict, f"figure of {law.name}", 0.1) for law, verdict in zip(LAWS, verdicts, strict=True)]


def issued(spec: StoreSpec = SPEC) -> Certificate:
    effort = Effort(races=16, rounds=200)
    return certify(Place.of(spec), findings(), effort, holdfast_version="1.2.3", ambient=ambient())


async def test_it_comes_back_as_it_was_written_and_names_the_place_and_no_secret() -> None:
    settings = Settings(s3=S3Section(access_key_id="AKIDEXAMPLE", secret_access_key="hunter2"))  # type: ignore[arg-type]  # pydantic makes the SecretStr
    certificate = issued(replace(StoreSpec.parse("s3://bucket/team", settings), options=(ENDPOINT,)))
    store: Store = MemoryStore()
    assert await read_certificate(store) is None
    await write_certificate(store, certificate, ambient())
    assert await read_certificate(store) == certificate
    assert {(law.name, law.verdict) for law in certificate.laws} == {(law.name, KEPT) for law in LAWS}
    assert (certificate.races, certificate.rounds, certificate.holdfast_version) == (16, 200, "1.2.3")
    body = (await store.get("meta/certificate.json")).body
    document = codec.decode(body, key=CERTIFICATE_KEY)
    assert (document["format"], document["version"], len(document["write_id"])) == ("holdfast.certificate", 1, 24)
    assert (document["store"], document["endpoint"]) == ("s3://bucket/team", "http://127.0.0.1:9000")
    assert not [secret for secret in (b"AKIDEXAMPLE", b"hunter2") if secret in body]


def test_it_covers_the_place_it_was_issued_for() -> None:
    certificate = issued()
    assert certificate.covers(Place.of(SPEC))
    for other in ("team?endpoint=http://127.0.0.1:9001", "team", "other?endpoint=http://127.0.0.1:9000"):
        assert not certificate.covers(Place.of(StoreSpec.parse(f"s3://bucket/{other}")))


def test_too_little_evidence_is_refused() -> None:
    judged: list[tuple[list[Finding], Effort, str]] = [
        (findings(), Effort(rounds=9), "too little effort: --rounds 9"),
        ([], Effort(), "no law was run"),
    ]
    for number, law in enumerate(LAWS):
        for verdict in (BROKEN, UNJUDGED):
            verdicts = [verdict if n == number else KEPT for n in range(len(LAWS))]
            judged.append((findings(verdicts), Effort(), f"no certificate: {law.name} is {verdict}"))
    for found, effort, reason in judged:
        with pytest.raises(Refused, match=reason):
            certify(Place.of(SPEC), found, effort, holdfast_version="1", ambient=ambient())


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"version": 2}, Incompatible, "newer than this client reads"),
        ({"laws": None}, Corrupt, "meta/certificate.json: laws"),
        ({"races": {"odd": True}}, Corrupt, "meta/certificate.json: races"),
    ],
)
async def test_one_that_is_newer_or_damaged_is_named(
    change: dict[str, object], error: type[Exception], message: str
) -> None:
    store: Store = MemoryStore()
    document = codec.stamp(issued().model_dump(mode="json"), format_name=FORMAT_NAME, version=1, write_id="w")
    await store.put(CERTIFICATE_KEY, codec.encode({**document, **change}))
    with pytest.raises(error, match=message):
        await read_certificate(store)


class TestStartCheck:
    async def test_eight_requests_and_nothing_left_beside_a_certificate(self) -> None:
        backend = MemoryStore()
        store = open_over(backend)
        checked = await start_check(store)
        assert store.usage.by_verb == {"put": 4, "get": 3, "delete": 1}
        assert store.usage.requests("put", "start-check") == 4
        assert backend.shelf.objects == {}
        assert checked.certificate is None
        assert "holdfast doctor --certify" in str(checked.advice)
        certificate = issued()
        await write_certificate(store, certificate, ambient())
        checked = await start_check(store)
        assert (checked.certificate, checked.advice) == (certificate, None)

    async def test_a_certificate_that_came_with_a_copy_does_not_count(self) -> None:
        store = open_over(MemoryStore())
        elsewhere = issued(StoreSpec.parse("s3://original/team"))
        await write_certificate(store, elsewhere, ambient())
        checked = await start_check(store)
        assert checked.certificate is None
        assert checked.foreign == elsewhere
        assert "s3://original/team" in str(checked.advice)

    async def test_the_advice_names_the_endpoint_where_only_that_differs(self) -> None:
        for endpoint, server in (("", "AWS"), ("?endpoint=http://127.0.0.1:9001", "http://127.0.0.1:9001")):
            store = open_over(MemoryStore())
            await write_certificate(store, issued(StoreSpec.parse(f"s3://bucket/team{endpoint}")), ambient())
            advice = str((await start_check(store)).advice)
            assert f"s3://bucket/team at {server}" in advice
            assert advice.startswith("s3://bucket/team at http://127.0.0.1:9000 has not been examined")

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
        with pytest.raises(Refused, match=evidence) as caught:
            await start_check(open_over(backend))
        assert str(caught.value).startswith("s3://bucket/team: ")
        assert "run holdfast doctor" in str(caught.value.remedy)
        assert caught.value.exit_code == 7
        assert backend.shelf.objects == {}

    async def test_bytes_that_changed_under_a_refusal_are_seen(self) -> None:
        with pytest.raises(Refused, match="a second create of one key was not refused"):
            await start_check(open_over(_WritesAndRefuses()))


class _WritesAndRefuses(MemoryStore):
    """Answers 412 and writes all the same; other bytes stand there afterwards."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if isinstance(outcome, Lost):
            await super().put(key, b"changed: " + body)
        return outcome
