"""The page about the fault proxy: its example runs against a real server, and its tables name everything there is."""

import ast
import inspect
import re
from typing import get_args

import pytest

from holdfast.sim.proxy import PRESETS, Fault, Rule
from tests.integration.proxy_kit import bucket, upstream
from tests.tidy.docs import blocks
from tests.tidy.tree import ROOT

__all__ = ["bucket", "upstream"]  # fixtures

PAGE = (ROOT / "docs" / "operate" / "fault-proxy.md").read_text(encoding="utf-8")


async def test_the_example_runs(
    upstream: str, bucket: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "key")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "secret")
    [example] = [block for block in blocks(PAGE) if block.info == "python no-run"]
    text = example.text.replace("http://127.0.0.1:9000", upstream).replace("s3://bucket?", f"s3://{bucket}?")
    await eval(compile(text, "fault-proxy.md", "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT), {})
    asked, landed, cut, *records = capsys.readouterr().out.splitlines()
    assert int(asked.split()[0]) >= 40
    assert int(landed.split()[0]) == 40
    assert int(cut.split()[0]) > 0
    assert len(records) == 3


def test_the_tables_name_everything() -> None:
    named = set(re.findall(r"^\| `([\w-]+)` \|", PAGE, re.MULTILINE))
    kinds = {fault().kind if not _needs(fault) else fault(1).kind for fault in get_args(Fault)}
    settings = {name for name in inspect.signature(Rule).parameters if name != "fault"}
    assert named == kinds | settings | set(PRESETS)


def _needs(fault: type) -> bool:
    parameters = inspect.signature(fault).parameters.values()
    return any(parameter.default is inspect.Parameter.empty for parameter in parameters)
