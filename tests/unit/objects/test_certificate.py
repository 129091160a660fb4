"""The certificate comes back as it was written and covers one place; the start check costs eight requests."""

import pickle
import random
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.base import codec
from holdfast.base.clock import SystemClock, parse_iso
from holdfast.base.config import S3Section, Settings
from holdfast.base.errors import Corrupt, Denied, Incompatible, Refused, Unavailable
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
from holdfast.objects.layer import Layer
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


class TestCertificate:
    def test_it_stands_for_an_ordinary_effort_at_least(self) -> None:
        hasty = Effort(rounds=9)
        with pytest.raises(Refused, match="too little effort: --rounds 9"):
            certify(Place.of(SPEC), findings(), hasty, holdfast_version="1.2.3", ambient=ambient())

    async def test_it_comes_back_as_it_was_written(self) -> None:
        store: Store = MemoryStore()
        assert await read_certificate(store) is None
        before = SystemClock().wall_ns()
        certificate = issued()
        await write_certificate(store, certificate, ambient())
        assert await read_certificate(store) == certificate
        assert [law.name for law in certificate.laws] == [law.name for law in LAWS]
        assert {law.verdict for law in certificate.laws} == {KEPT}
        assert (certificate.races, certificate.rounds, certificate.holdfast_version) == (16, 200, "1.2.3")
        assert before - 1_000 <= parse_iso(certificate.certified_at) <= SystemClock().wall_ns()

    async def test_the_object_is_a_control_document_of_ours(self) -> None:
        store: Store = MemoryStore()
        await write_certificate(store, issued(), ambient())
        document = codec.decode((await store.get("meta/certificate.json")).body, key=CERTIFICATE_KEY)
        assert document["format"] == "holdfast.certificate"
        assert document["version"] == 1
        assert len(document["write_id"]) == 24

    async def test_it_names_the_place_and_no_secret(self) -> None:
        settings = Settings(s3=S3Section(access_key_id="AKIDEXAMPLE", secret_access_key="hunter2"))  # type: ignore[arg-type]  # pydantic makes the SecretStr
        spec = replace(StoreSpec.parse("s3://bucket/team", settings), options=(ENDPOINT,))
        store: Store = MemoryStore()
        await write_certificate(store, issued(spec), ambient())
        body = (await store.get(CERTIFICATE_KEY)).body.decode()
        assert '"store":"s3://bucket/team"' in body
        assert '"endpoint":"http://127.0.0.1:9000"' in body
        assert not [secret for secret in ("AKIDEXAMPLE", "hunter2") if secret in body]

    def test_it_covers_the_place_it_was_issued_for(self) -> None:
        certificate = issued()
        assert certificate.covers(Place.of(SPEC))
        assert certificate.covers(Place.of(pickle.loads(pickle.dumps(SPEC))))
        assert not certificate.covers(Place.of(StoreSpec.parse("s3://bucket/team?endpoint=http://127.0.0.1:9001")))
        assert not certificate.covers(Place.of(StoreSpec.parse("s3://bucket/team")))
        assert not certificate.covers(Place.of(StoreSpec.parse("s3://bucket/other?endpoint=http://127.0.0.1:9000")))

    @pytest.mark.parametrize("number", range(len(LAWS)))
    def test_one_law_that_was_not_kept_forbids_it(self, number: int) -> None:
        for verdict in (BROKEN, UNJUDGED):
            verdicts = [verdict if n == number else KEPT for n in range(len(LAWS))]
            with pytest.raises(Refused, match=f"no certificate: {LAWS[number].name} is {verdict}"):
                certify(Place.of(SPEC), findings(verdicts), Effort(), holdfast_version="1", ambient=ambient())

    def test_no_findings_are_no_evidence(self) -> None:
        with pytest.raises(Refused, match="no law was run"):
            certify(Place.of(SPEC), [], Effort(), holdfast_version="1", ambient=ambient())

    async def test_a_newer_certificate_is_not_half_read(self) -> None:
        store: Store = MemoryStore()
        await store.put(CERTIFICATE_KEY, codec.encode({"format": FORMAT_NAME, "version": 2}))
        with pytest.raises(Incompatible, match="newer than this client reads"):
            await read_certificate(store)

    @given(st.sampled_from(["store", "certified_at", "laws", "races"]), st.none() | st.just({"odd": True}))
    async def test_a_damaged_one_is_named(self, field: str, value: object) -> None:
        store: Store = MemoryStore()
        document = codec.stamp(issued().model_dump(mode="json"), format_name=FORMAT_NAME, version=1, write_id="w")
        await store.put(CERTIFICATE_KEY, codec.encode({**document, field: value}))
        with pytest.raises(Corrupt, match=f"meta/certificate.json: {field}"):
            await read_certificate(store)

    async def test_fields_of_later_versions_are_tolerated(self) -> None:
        store: Store = MemoryStore()
        document = codec.stamp(issued().model_dump(mode="json"), format_name=FORMAT_NAME, version=1, write_id="w")
        await store.put(CERTIFICATE_KEY, codec.encode({**document, "later": 1}))
        assert await read_certificate(store) == issued_like(document)


def issued_like(document: dict) -> Certificate:
    return Certificate.model_validate(document)


class TestStartCheck:
    async def test_eight_requests_and_nothing_left(self) -> None:
        backend = MemoryStore()
        store = open_over(backend)
        checked = await start_check(store)
        assert store.usage.by_verb == {"put": 4, "get": 3, "delete": 1}
        assert backend.shelf.objects == {}
        assert checked.certificate is None
        assert checked.advice is not None
        assert "holdfast doctor --certify" in checked.advice

    async def test_it_finds_the_certificate(self) -> None:
        store = open_over(MemoryStore())
        certificate = issued()
        await write_certificate(store, certificate, ambient())
        checked = await start_check(store)
        assert checked.certificate == certificate
        assert checked.advice is None
        assert store.usage.by_verb == {"put": 5, "get": 3, "delete": 1}

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

    @pytest.mark.parametrize("error", [Unavailable("no route"), Denied("no permission")])
    async def test_other_trouble_is_passed_on_as_it_is(self, error: Exception) -> None:
        with pytest.raises(type(error), match=str(error)):
            await start_check(open_over(_Broken(error)))


class _WritesAndRefuses(MemoryStore):
    """Answers 412 and writes all the same; other bytes stand there afterwards."""

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        outcome = await super().put(key, body, mode)
        if isinstance(outcome, Lost):
            await super().put(key, b"changed: " + body)
        return outcome


class _Broken(Layer):
    def __init__(self, error: Exception) -> None:
        super().__init__(MemoryStore())
        self._error = error

    async def put(self, key: str, body: bytes, mode: Mode = OVERWRITE) -> Written | Lost:
        raise self._error
