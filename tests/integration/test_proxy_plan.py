"""Plans: what rules match, that a seed decides, and how a plan stands in JSON and on the command line."""

import json
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import httpx
import pytest

from holdfast.base.errors import Invalid
from holdfast.sim.proxy import (
    PRESETS,
    Answer,
    CutResponse,
    Forward,
    LoseRequest,
    Plan,
    RefuseConnection,
    Rule,
    Twice,
    lossy,
)
from holdfast.sim.proxy.__main__ import main, read_plan
from holdfast.sim.proxy.http import RequestHead
from holdfast.sim.proxy.plan import Chooser
from holdfast.sim.proxy.request import Request, classify
from tests.integration.proxy_kit import bucket, upstream

__all__ = ["bucket", "upstream"]  # fixtures


def request(method: str, target: str, **headers: str) -> Request:
    given = tuple((name.replace("_", "-"), value) for name, value in headers.items())
    return classify(RequestHead("HTTP/1.1", given, method, target))


PUT = request("PUT", "/b/k")


@pytest.mark.parametrize(
    ("method", "target", "headers", "verb", "key"),
    [
        ("GET", "/b/a/k%20x", {}, "get", "a/k x"),
        ("GET", "/b/k", {"Range": "bytes=0-1"}, "range", "k"),
        ("HEAD", "/b/k", {}, "head", "k"),
        ("PUT", "/b/k?x-id=PutObject", {}, "put", "k"),
        ("PUT", "/b/k", {"x_amz_copy_source": "/b/j"}, "copy", "k"),
        ("PUT", "/b/k?partNumber=1&uploadId=u", {}, "multipart", "k"),
        ("POST", "/b/k?uploads", {}, "multipart", "k"),
        ("DELETE", "/b/k", {}, "delete", "k"),
        ("POST", "/b?delete", {}, "delete", ""),
        ("POST", "/b/?delete=", {}, "delete", ""),
        ("GET", "/b?list-type=2&prefix=a%2F&delimiter=%2F&x-id=ListObjectsV2", {}, "list", "a/"),
        ("GET", "/b/", {}, "list", ""),
        ("GET", "/b?prefix=p&marker=m", {}, "list", "p"),
        ("GET", "/b?location", {}, "bucket", ""),
        ("PUT", "/b", {}, "bucket", ""),
        ("GET", "/", {}, "bucket", ""),
    ],
)
def test_requests_are_told_apart(method: str, target: str, headers: dict[str, str], verb: str, key: str) -> None:
    found = request(method, target, **headers)
    assert (found.verb, found.key, found.bucket) == (verb, key, "b" if target != "/" else "")


@pytest.mark.parametrize(
    ("rule", "matches"),
    [
        (Rule(fault=Answer()), True),
        (Rule(fault=Answer(), verb="put", method="PUT", prefix="a/", condition="if-match"), True),
        (Rule(fault=Answer(), condition="any"), True),
        (Rule(fault=Answer(), condition="none"), False),
        (Rule(fault=Answer(), condition="if-none-match"), False),
        (Rule(fault=Answer(), prefix="b/"), False),
        (Rule(fault=Answer(), verb="get"), False),
        (Rule(fault=Answer(), method="POST"), False),
    ],
)
def test_a_rule_matches_when_all_of_it_holds(rule: Rule, matches: bool) -> None:
    assert rule.matches(request("PUT", "/bucket/a/k", If_Match='"1"')) is matches


def faults(plan: Plan, times: int) -> list[str | None]:
    chooser = Chooser(plan)
    chosen = [chooser.choose(PUT).fault for _ in range(times)]
    return [fault.kind if fault is not None else None for fault in chosen]


def test_a_seed_decides() -> None:
    one = faults(lossy(1), 200)
    assert one == faults(lossy(1), 200)
    assert one != faults(lossy(2), 200)


def test_the_share_is_what_was_asked_for() -> None:
    counted = Counter(faults(lossy(3, share=0.25), 4_000))
    assert 900 < 4_000 - counted[None] < 1_100
    assert {"cut-response", "twice", None} == set(counted)
    assert 250 < counted["cut-response"] < 420


def test_every_rule_counts_for_itself() -> None:
    plan = Plan.of(
        Rule(fault=LoseRequest(), nth=2),
        Rule(fault=CutResponse(), times=2),
        Rule(fault=Answer(), nth=2),
        Rule(fault=Twice(), nth=5),
    )
    assert faults(plan, 6) == ["cut-response", "lose-request", "cut-response", None, "twice", None]


def test_connections_are_counted_apart_from_requests() -> None:
    chooser = Chooser(Plan.of(Rule(fault=RefuseConnection(), nth=2), Rule(fault=Forward())))
    assert [chooser.refuses_connection() for _ in range(3)] == [False, True, False]
    assert chooser.choose(PUT).fault == Forward()


@pytest.mark.parametrize("name", PRESETS)
def test_a_plan_survives_json(name: str) -> None:
    plan = PRESETS[name](7)
    assert plan.rules
    assert Plan.parse(plan.json()) == plan


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "Invalid JSON"),
        ('{"rules": [{"fault": {"kind": "explode"}}]}', "rules.0.fault: Input tag 'explode'"),
        ('{"rules": [{"fault": {"kind": "answer", "code": 1}}]}', "rules.0.fault.answer.code: "),
        ('{"rules": [{"fault": {"kind": "answer"}, "verbs": "put"}]}', "rules.0.verbs: "),
        ('{"rules": [{"fault": {"kind": "answer"}, "probability": 2}]}', "probability 2.0 is not between 0 and 1"),
        ('{"rules": [{"fault": {"kind": "refuse-connection"}, "verb": "put"}]}', "cannot look at requests"),
        ('{"rules": [{"fault": {"kind": "delay-response"}}]}', "rules.0.fault.delay-response.ms: "),
    ],
)
def test_a_wrong_plan_is_refused_with_its_place(text: str, complaint: str) -> None:
    with pytest.raises(Invalid) as caught:
        Plan.parse(text)
    assert complaint in str(caught.value)


def test_the_command_line_takes_presets_files_and_json(tmp_path: Path) -> None:
    text = '{"seed": 3, "rules": [{"fault": {"kind": "stall"}}]}'
    (tmp_path / "plan.json").write_text(text)
    assert read_plan(None, 4) == Plan(seed=4)
    assert read_plan("lossy", 4) == lossy(4)
    assert read_plan(text, None) == read_plan(str(tmp_path / "plan.json"), None) == Plan.parse(text)
    assert read_plan(text, 9).seed == 9


@pytest.mark.parametrize(
    ("arguments", "complaint"),
    [
        (["--upstream", "ftp://x"], "upstream 'ftp://x'"),
        (["--upstream", "http://127.0.0.1:9", "--listen", "9000"], "--listen '9000'"),
        (["--upstream", "http://127.0.0.1:9", "--plan", "no-such"], "fault plan 'no-such' is no preset"),
    ],
)
def test_a_wrong_command_line_is_one_clear_line(
    arguments: list[str], complaint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(arguments) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert complaint in said


def test_a_port_that_is_taken_is_named(upstream: str, capsys: pytest.CaptureFixture[str]) -> None:
    taken = upstream.removeprefix("http://")
    assert main(["--upstream", upstream, "--listen", taken]) == 1
    assert capsys.readouterr().err == f"error: cannot listen on {taken}: Address already in use; choose another port\n"


def test_it_runs_from_the_command_line(upstream: str, bucket: str) -> None:
    plan = json.dumps({"rules": [{"fault": {"kind": "cut-response"}, "verb": "put", "nth": 2}]})
    command = [sys.executable, "-m", "holdfast.sim.proxy", "--upstream", upstream, "--plan", plan, "--trace"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            banner = process.stdout.readline()
            endpoint, _, rest = banner.partition(" ")
            assert rest == f"-> {upstream}, 1 rules, seed 0\n"
            with httpx.Client(base_url=endpoint) as client:
                assert client.put(f"/{bucket}/one", content=b"x").status_code == 200
                with pytest.raises(httpx.TransportError):
                    client.put(f"/{bucket}/two", content=b"x", headers={"If-None-Match": "*"})
                assert client.get(f"/{bucket}/two").content == b"x"
        finally:
            process.send_signal(signal.SIGTERM)
            said, _ = process.communicate(timeout=20)
    *trace, counts = said.splitlines()
    assert process.returncode == 0
    assert [" ".join(line.split()) for line in trace] == [
        "1 put one forward server 200 client 200",
        "2 put two [if-none-match] cut-response server 200 client cut",
        "3 get two forward server 200 client 200",
    ]
    assert json.loads(counts) == {
        "connections": 2,
        "asked": {"get": 1, "put": 2},
        "served": {"get 200": 1, "put 200": 2},
        "answered": {"get 200": 1, "put 0": 1, "put 200": 1},
        "faults": {"cut-response": 1},
    }
