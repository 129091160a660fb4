"""Each printed role can do all that it is for, through a proxy that enforces the printed documents, and has no grant
that its work does not use."""

import asyncio
import json
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import SecretStr

from holdfast.base.config import S3Section, Settings
from holdfast.base.errors import Denied, NotFound
from holdfast.base.ids import Ambient
from holdfast.cli import nouns
from holdfast.cli.main import run
from holdfast.objects.open import open_store
from holdfast.objects.store import CREATE, OVERWRITE, Store
from holdfast.telemetry import Client, Counter, Gauge, Log
from holdfast.telemetry.accept import layout
from holdfast.telemetry.agent.client import BatchConflict
from holdfast.telemetry.policy import Bucket, bucket_policy, role_policies
from tests.fakes.policy_proxy import PolicyProxy, Role
from tests.integration.collectors import Running, collectors, make_token
from tests.integration.run_places import Place
from tests.integration.servers import S3Server

HOUR_NS = 3600 * 10**9
ARN = "arn:aws:iam::123456789012:role/"
BLOB = f"raw-blobs/v1/sha256/ab/cd/{'ab' * 32}.lmbatch"
MANIFEST = "accepted/v1/agent=61/boot=62/00000000000000000000-00000000000000000001.json"
QUESTIONS = (
    *("/healthz", "/readyz", "/metrics", "/api/v1/live", "/api/v1/conflicts", "/api/v1/holds"),
    *("/api/v1/metrics/list?since=3h", "/api/v1/metrics/labels?metric=load&since=3h"),
    *("/api/v1/metrics/query?metric=load&since=3h", "/api/v1/logs/search?words=disk&since=3h"),
)
RARELY = {
    "collector": {
        "Read expired/v1/": "for a batch whose bytes have expired",
        "Write collector-probes/v1/": "after the store has refused a batch",
    },
    "reader": {
        "Read expired/v1/": "for a batch whose bytes have expired",
    },
    "pipeline": {
        "Write snapshots/": "by the job compact",
        "Write accepted-by-time/v1/": "for a batch of a plain collector, by a full reconcile",
        "Write raw-blobs-by-time/v1/": "for bytes without a manifest, by a full reconcile",
        "Write quarantine-by-blob/v1/sha256/": "for a conflict whose collector was killed, by a full reconcile",
    },
}
"""Grants that this test does not use, and when they are."""


NOUNS = ("audit", "authority", "conflicts", "gc", "logs", "metrics", "pipeline", "policy")
NOT_COVERED = {
    "pipeline load": "writes an ontology",
    "pipeline compact": "writes an ontology",
}
BECAUSE = ("--why", "a test")


class Deployment:
    """A bucket behind the proxy. Each role has an access key of its own name."""

    def __init__(self, server: S3Server, bucket: str, capsys: pytest.CaptureFixture[str]) -> None:
        self.about = Bucket(bucket, "fleet", gc_role_arn=f"{ARN}gc")
        self.roles = {name: Role(f"{ARN}{name}", policy) for name, policy in role_policies(self.about).items()}
        self.proxy = PolicyProxy(server.endpoint, bucket_policy(self.about), self.roles)
        self._capsys = capsys
        self._ran: list[str] = []

    def uri(self, host: str = "127.0.0.1") -> str:
        endpoint = self.proxy.endpoint.replace("127.0.0.1", host)
        return f"s3://{self.about.bucket}/{self.about.prefix}?endpoint={endpoint}&allow_http=true"

    async def command(self, role: str, text: str, *more: str, host: str = "127.0.0.1") -> str:
        """What a command prints, which succeeds with the credentials of a role; nothing is refused."""
        printed = await self.attempt(role, text, *more, host=host)
        assert self.refused() == {}, text
        return printed

    async def attempt(self, role: str, text: str, *more: str, host: str = "127.0.0.1") -> str:
        """What a command prints, which succeeds with the credentials of a role."""
        words = [*text.split(), *more]
        self._ran.append(text)
        s3 = {"ACCESS_KEY_ID": role, "SECRET_ACCESS_KEY": "secret", "REGION": "us-east-1"}
        with pytest.MonkeyPatch.context() as environment:
            for name, value in s3.items():
                environment.setenv(f"HOLDFAST_S3__{name}", value)
            for name in ("GC__GRACE_S", "INGEST__RETRY_HORIZON_S"):
                environment.setenv(f"HOLDFAST_{name}", "0")
            self._capsys.readouterr()
            got = await asyncio.to_thread(run, [*words, "--store", self.uri(host), "--json"])
        printed = self._capsys.readouterr()
        assert got == 0, (words, printed.err)
        return printed.out

    def left_out(self) -> list[str]:
        """Commands of telemetry that were not run."""
        loaded = {noun.name: nouns.load(noun) for noun in nouns.NOUNS if noun.name in NOUNS}
        known = [f"{noun} {name}" for noun in loaded for name in getattr(loaded[noun], "commands", {})]
        return [
            each
            for each in known
            if each not in NOT_COVERED and not any(f"{ran} ".startswith(f"{each} ") for ran in self._ran)
        ]

    def refused(self) -> dict[str, list[str]]:
        """What roles were refused, and forget it."""
        found = {
            name: sorted({f"{one.action} {one.resource} {one.context.get('s3:prefix', '')}" for one in role.refused})
            for name, role in self.roles.items()
            if role.refused
        }
        for role in self.roles.values():
            role.refused.clear()
        return found

    @asynccontextmanager
    async def collector(self, folder: Path) -> AsyncIterator[tuple[Running, str]]:
        tokens = folder / "tokens.toml"
        token = make_token(tokens, "*")
        keys = S3Section(access_key_id="collector", secret_access_key=SecretStr("secret"), region="us-east-1")

        def unused(*_: Any) -> Any:
            raise NotImplementedError

        place = Place(self.uri(), unused, unused, unused, Settings(s3=keys))
        entered = collectors(place, tokens, ("--query-collector",))
        [running] = await asyncio.to_thread(entered.__enter__)
        try:
            yield running, token
        finally:
            await asyncio.to_thread(entered.__exit__, None, None, None)

    def also(self, role: str, other: str) -> None:
        """Attach the document of another role too."""
        own, more = self.roles[role].policy, self.roles[other].policy
        self.roles[role].policy = {**own, "Statement": [*own["Statement"], *more["Statement"]]}

    def unused(self, role: str) -> list[str]:
        root = self.about.arn("").removesuffix("*")
        found = {
            f"{sid} {pattern.removeprefix(root).removesuffix('*')}"
            for sid, pattern in self.roles[role].unused()
            if sid != "List"
        }
        return sorted(found - RARELY.get(role, {}).keys())


async def ask(running: Running) -> dict[str, Any]:
    """Every route that reads."""
    found: dict[str, Any] = {}
    async with httpx.AsyncClient(base_url=running.private, timeout=30) as http:
        for path in QUESTIONS:
            answer = await http.get(path)
            assert answer.status_code == 200, (path, answer.text)
            found[path.partition("?")[0]] = answer
        for each in found["/api/v1/conflicts"].json()["conflicts"]:
            path = f"/api/v1/conflicts/{each['submitted_frame_sha256']}"
            assert (await http.get(path)).status_code == 200
        async with http.stream("GET", "/api/v1/live/stream") as stream:
            assert stream.status_code == 200
        paths = (await http.get("/openapi.json")).json()["paths"]
    reads = {path for path, about in paths.items() if "get" in about}
    assert reads - found.keys() == {"/api/v1/conflicts/{sha256}", "/api/v1/live/stream"}
    return found


async def decide(fleet: Deployment, running: Running, first: str, second: str) -> None:
    """What an operator does, on the command line and over the collector's private listener."""
    # What decides needs the operator's document on the collector's role too.
    decision = {"resolution": "existing_is_authoritative", "by": "operator", "why": "a test"}
    lifted = {"agent_id": "web-1", "boot_id": "b", "by": "operator", "why": "a test"}
    for allowed in (False, True):
        if allowed:
            fleet.also("collector", "operator")
            await fleet.command("operator", f"conflicts resolve {second} --quarantine-identity", *BECAUSE)
        async with httpx.AsyncClient(base_url=running.private, timeout=30) as http:
            resolved = await http.post(f"/api/v1/conflicts/{first}/resolve", json=decision)
            lift = await http.post("/api/v1/holds/lift", json=lifted)
        if allowed:
            assert (resolved.status_code, lift.status_code, fleet.refused()) == (200, 200, {})
        else:
            assert (resolved.status_code, resolved.json()["error"]["kind"]) == (403, "denied")
            assert set(fleet.refused()) == {"collector"}

    await fleet.command("operator", "conflicts list")
    await fleet.command("operator", f"conflicts show {first}")
    await fleet.command("operator", f"conflicts resolve {first} --existing-is-authoritative", *BECAUSE)
    await fleet.command("operator", "conflicts holds")
    await fleet.command("operator", f"conflicts resolve {second} --quarantine-identity", *BECAUSE)
    await fleet.command("operator", "conflicts lift web-1 b", *BECAUSE)
    await fleet.command("operator", "authority show")
    await fleet.command("operator", "authority promote --original-is-out-of-service", *BECAUSE, host="localhost")
    await fleet.command("operator", "authority alias --same-bucket")


@pytest.mark.timeout(180)  # a process and some thirty commands, on a busy machine
async def test_every_role_can_do_its_work_and_has_no_grant_that_it_does_not_use(
    ministack: S3Server, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    bucket = f"roles-{Ambient.system().ids.unique()[:8]}"
    ministack.create_bucket(bucket)
    fleet = Deployment(ministack, bucket, capsys)
    hour = (Ambient.system().clock.wall_ns() // HOUR_NS - 1) * HOUR_NS
    records: list[Any] = [Gauge("load", float(n), hour + n * 60 * 10**9) for n in range(5)]
    records += [Counter("requests", n, hour + n * 60 * 10**9) for n in range(5)]
    records += [Log("the disk is full", hour, 17)]
    async with fleet.proxy, fleet.collector(tmp_path) as (running, token):

        async def send(*each: Any, seq_start: int = 0) -> Any:
            url = running.ingest
            async with Client(url, agent_id="web-1", token=token, boot_id="b", seq_start=seq_start) as client:
                return await client.send(each)

        assert not (await send(*records)).batches[0].duplicate
        assert (await send(*records)).batches[0].duplicate
        for value in (8.0, 9.0):
            with pytest.raises(BatchConflict):
                await send(*[Gauge("load", value, hour)] * len(records))
        await ask(running)
        assert fleet.refused() == {}

        await fleet.command("pipeline", "pipeline run --master local")
        await fleet.command("pipeline", "pipeline run reconcile --full --master local")
        await fleet.command("pipeline", "audit run --master local")
        for text in ("status", "history", "plan"):
            await fleet.command("pipeline", f"pipeline {text}")
        found = await ask(running)  # from rollups and indexes now
        assert fleet.refused() == {}
        read = found["/api/v1/metrics/query"].json()["read"]
        assert (read["chunks"], read["batches"]) == (1, 0)
        first, second = (each["submitted_frame_sha256"] for each in found["/api/v1/conflicts"].json()["conflicts"])

        await fleet.command("reader", "metrics query load --since 3h")
        await fleet.command("reader", "metrics list")
        await send(*records[:3], seq_start=5)  # overlaps the first batch, and came after the pipeline
        await ask(running)
        for text in (
            *("metrics query load --since 3h", "metrics labels load --since 3h", "logs search disk"),
            *("conflicts list", f"conflicts show {first}", "conflicts holds", "authority show"),
            *("pipeline status", "pipeline history", "gc history", "audit list", "audit show"),
        ):
            await fleet.command("reader", text)

        await decide(fleet, running, first, second)
        await fleet.command("pipeline", "audit run --older-than 1s --master local")
        await fleet.command("gc", "gc plan")
        gone = json.loads(await fleet.command("gc", "gc run --apply"))
        assert sum(gone[0]["kinds"]["orphans"]["removed"].values()) == 3  # bytes, record and reference of a conflict
        collected = json.loads(await fleet.command("gc", "gc history"))[0]["run_id"]
        for role in ("gc", "reader"):
            await fleet.command(role, f"gc show {collected}")
        for role in ("collector", "gc"):
            await fleet.attempt(role, f"policy check --role {role}")
            assert set(fleet.refused()) == {role}

        assert fleet.left_out() == []
        named = ("collector", "reader", "operator", "pipeline")  # garbage of other domains is not made here
        assert "; ".join(f"{role}: {grant}" for role in named for grant in fleet.unused(role)) == ""


@pytest.mark.parametrize(
    ("role", "work"),
    [
        ("collector", lambda store: store.delete(BLOB)),
        ("collector", lambda store: store.put(MANIFEST, b"", OVERWRITE)),
        ("collector", lambda store: store.put(layout.HOLDS, b"", OVERWRITE)),
        ("collector", lambda store: store.put(f"{layout.EXPIRED}x.json", b"", CREATE)),
        ("reader", lambda store: store.put(BLOB, b"", CREATE)),
        ("operator", lambda store: store.put(MANIFEST, b"", CREATE)),
        ("pipeline", lambda store: store.put(MANIFEST, b"", CREATE)),
        ("pipeline", lambda store: store.delete(BLOB)),
        ("gc", lambda store: store.delete(MANIFEST)),
        ("gc", lambda store: store.delete(f"{layout.EXPIRED}x.json")),
        ("gc", lambda store: store.delete_many([BLOB, MANIFEST])),
        ("reader", lambda store: anext(store.list("commits/"))),
    ],
)
async def test_what_is_not_the_work_of_a_role_is_refused(
    ministack: S3Server, capsys: pytest.CaptureFixture[str], role: str, work: Callable[[Store], Awaitable[Any]]
) -> None:
    bucket = "roles-refused"
    ministack.create_bucket(bucket)
    fleet = Deployment(ministack, bucket, capsys)
    settings = Settings(s3=S3Section(access_key_id=role, secret_access_key=SecretStr("secret"), region="us-east-1"))
    async with fleet.proxy, open_store(fleet.uri(), settings=settings) as store:
        with pytest.raises(NotFound):  # not Denied: each role may learn that an object is missing
            await store.get(layout.AUTHORITY)
        with pytest.raises(Denied):
            await work(store)
        fleet.refused()
