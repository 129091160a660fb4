"""The command as a whole: options, errors, exit codes, speed of import."""

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.main import get_command

from holdfast.base.errors import TABLE, NotFound, Unavailable
from holdfast.cli import nouns
from holdfast.cli.main import FLAGS, TAKES_VALUE, app, globals_first, run
from holdfast.cli.nouns import NOUNS, Noun, load
from holdfast.cli.shell import NounApp, Shell, noun_app

COMMAND = [sys.executable, "-m", "holdfast"]


def commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    yield path, command
    for name, child in getattr(command, "commands", {}).items():
        yield from commands(child, f"{path} {name}")


def all_commands() -> list[tuple[str, Any]]:
    return [pair for noun in NOUNS for pair in commands(load(noun), noun.name)]


@pytest.fixture
def noun(monkeypatch: pytest.MonkeyPatch) -> Iterator[NounApp]:
    """A noun of this test's own, reached through the real command."""
    module = ModuleType("probe_noun")
    module.app = noun_app()  # type: ignore[attr-defined]  # what a noun's module has
    monkeypatch.setitem(sys.modules, "probe_noun", module)
    monkeypatch.setattr(nouns, "NOUNS", (*NOUNS, Noun("probe", "probe_noun", "Probe.")))
    registered = list(app.registered_commands)
    nouns.register(app)
    yield module.app
    app.registered_commands[:] = registered


def failing(noun: NounApp, error: BaseException) -> None:
    @noun.command()
    def probe(_: Shell) -> None:
        raise error


class TestNouns:
    def test_help_pages_have_whole_sentences_at_80_columns(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("COLUMNS", "80")
        whole = get_command(app)
        pages = {path: command.get_help(typer.Context(command, info_name=path)) for path, command in all_commands()}
        pages[""] = whole.get_help(typer.Context(whole, info_name="holdfast"))
        for path, page in pages.items():
            assert max(map(len, page.splitlines())) <= 80, path
            described = page.partition("\nCommands:\n")[2]
            assert "..." not in described, path
        assert "Kill processes on a local store, and check that nothing is lost." in pages[""]

    @pytest.mark.parametrize("noun", NOUNS, ids=lambda noun: noun.name)
    def test_summary_is_the_command_s_own(self, noun: Noun) -> None:
        assert load(noun).get_short_help_str(200).rstrip(".") == noun.summary.rstrip(".")

    def test_every_command_and_option_says_what_it_does_and_no_option_has_a_global_name(self) -> None:
        for path, command in all_commands():
            assert command.help, path
            for parameter in command.params:
                assert parameter.help, f"{path} {parameter.name}"
                offered = {*getattr(parameter, "opts", [])}
                assert not offered & (FLAGS | TAKES_VALUE | {"--install-completion"}), path


class TestOptions:
    def test_help_lists_every_noun(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["--help"]) == 0
        printed = capsys.readouterr().out
        assert all(re.search(rf"^  {noun.name} +\S", printed, re.MULTILINE) for noun in NOUNS)
        assert all(option in printed for option in FLAGS | TAKES_VALUE)

    def test_no_arguments_is_help(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run([]) == 0
        assert "Usage: holdfast" in capsys.readouterr().out

    def test_version(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert run(["--version"]) == 0
        assert re.fullmatch(r"holdfast \d+\.\d+\.\d+\n", capsys.readouterr().out)
        assert run(["--json", "--version"]) == 0
        assert json.loads(capsys.readouterr().out)["version"]

    def test_global_options_anywhere(self, capsys: pytest.CaptureFixture[str]) -> None:
        printed = []
        for line in ("--store memory: --json config", "config --json --store memory:", "config --store=memory: --json"):
            assert run(line.split()) == 0
            printed.append(json.loads(capsys.readouterr().out))
        assert printed[0] == printed[1] == printed[2]
        assert {"setting": "store.uri", "value": "memory:", "source": "command line"} in printed[0]

    @pytest.mark.parametrize(
        ("line", "moved"),
        [
            ("--json doctor", "--json doctor"),
            ("runs list --store file:x --limit 3", "--store file:x runs list --limit 3"),
            ("runs --verbose list --store=file:x --json", "--verbose --store=file:x --json runs list"),
            ("a --store one b --store two", "--store one --store two a b"),
            ("run --json -- job --json", "--json run -- job --json"),
            ("doctor --json=x --jsonl", "doctor --json=x --jsonl"),
            ("doctor --json --store", "--json --store"),  # the missing value, and not the noun, is reported
        ],
    )
    def test_global_options_move_to_the_front(self, line: str, moved: str) -> None:
        assert globals_first(line.split()) == moved.split()

    @given(st.lists(st.sampled_from(["doctor", "-x", "7", "--json", "--verbose", "--config=c", "--"])))
    def test_no_argument_is_lost_and_the_order_is_kept(self, argv: list[str]) -> None:
        moved = globals_first([*argv, "--store", "file:x"])
        assert sorted(moved) == sorted([*argv, "--store", "file:x"])
        assert globals_first(moved) == moved
        assert [item for item in moved if item in argv and not item.startswith("--")] == [
            item for item in argv if not item.startswith("--")
        ]

    def test_shell_reaches_the_command_and_its_loop(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        @noun.command()
        async def probe(shell: Shell, value: int = 3) -> None:
            """With a help text of its own."""
            await asyncio.sleep(0)
            shell.out.record({"store": shell.settings.store.uri, "value": value})

        assert run(["probe", "--json", "--store", "memory:", "--value", "4"]) == 0
        assert json.loads(capsys.readouterr().out) == {"store": "memory:", "value": 4}
        assert get_command(noun).help == "With a help text of its own."


class TestErrors:
    @pytest.mark.parametrize(
        ("line", "message"),
        [
            ("confg", "No such command 'confg'. Did you mean 'config'?"),
            ("config --what", "No such option: --what"),
            ("config extra", "unexpected extra argument"),
            ("config --store", "Option '--store' requires an argument"),
        ],
    )
    def test_a_wrong_line_is_one_line_and_exit_code_2(
        self, line: str, message: str, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert run(line.split()) == TABLE["invalid"].exit_code == 2
        printed = capsys.readouterr()
        first, hint = printed.err.splitlines()
        assert first.startswith("error: ")
        assert message in first
        assert hint.startswith("hint: see holdfast")
        assert printed.out == ""

    def test_an_error_of_ours(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        failing(noun, NotFound("bucket b does not exist", remedy="create it"))
        assert run(["probe"]) == TABLE["not_found"].exit_code
        assert capsys.readouterr().err == "error: bucket b does not exist\nhint: create it\n"
        assert run(["probe", "--json"]) == TABLE["not_found"].exit_code
        assert json.loads(capsys.readouterr().err)["error"]["kind"] == "not_found"

    def test_an_error_out_of_a_task_group(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        failing(noun, ExceptionGroup("unhandled", [ExceptionGroup("inner", [Unavailable("store is away")])]))
        assert run(["probe"]) == TABLE["unavailable"].exit_code
        assert capsys.readouterr().err.startswith("error: store is away\n")

    def test_an_unexpected_exception(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        failing(noun, ZeroDivisionError("division\nby zero"))
        assert run(["probe"]) == 1
        first, hint = capsys.readouterr().err.splitlines()
        assert first == "error: ZeroDivisionError: division by zero"
        assert "--verbose" in hint

    def test_verbose_shows_the_traceback(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        failing(noun, ZeroDivisionError("x"))
        assert run(["probe", "--verbose"]) == 1
        assert "Traceback (most recent call last)" in capsys.readouterr().err

    def test_exit_code_of_a_command(self, noun: NounApp) -> None:
        failing(noun, typer.Exit(7))
        assert run(["probe"]) == 7

    def test_a_noun_without_its_verb_shows_its_verbs(self, noun: NounApp, capsys: pytest.CaptureFixture[str]) -> None:
        for name in ("one", "two"):
            noun.command(name)(lambda _: None)
        assert run(["probe"]) == 2
        assert "Commands:\n  one" in capsys.readouterr().err
        assert run(["probe", "--json"]) == 2
        assert json.loads(capsys.readouterr().err)["error"]["message"] == "holdfast probe needs a command"


class TestProcess:
    def test_help_imports_nothing_heavy(self) -> None:
        """Counted, not timed: these modules are what makes a start slow."""
        script = (
            "import sys; from holdfast.cli.main import run; code = run(['--help']);"
            "print([name for name in sys.argv[1:] if name in sys.modules], file=sys.stderr); sys.exit(code)"
        )
        heavy = ["pyarrow", "duckdb", "obstore", "rich", "pydantic", "httpx", "asyncio", "opentelemetry"]
        result = subprocess.run([sys.executable, "-c", script, *heavy], capture_output=True, text=True, check=True)
        assert result.stderr.strip() == "[]"

    def test_the_package_runs_as_a_module_and_as_a_script(self) -> None:
        script = str(Path(sys.executable).parent / "holdfast")
        printed = {
            subprocess.run([*command, "--version"], capture_output=True, text=True, check=True).stdout
            for command in (COMMAND, [script])
        }
        assert len(printed) == 1

    def test_a_reader_that_closes_the_pipe_is_not_an_error(self) -> None:
        reader, writer = os.pipe()
        os.close(reader)
        result = subprocess.run([*COMMAND, "config"], stdout=writer, stderr=subprocess.PIPE, text=True, check=False)
        os.close(writer)
        assert (result.returncode, result.stderr) == (141, "")

    def test_ctrl_c_ends_quietly_with_130(self) -> None:
        script = (
            "import asyncio, sys, types\n"
            "from holdfast.cli import main, nouns\n"
            "from holdfast.cli.shell import NounApp, Shell, noun_app\n"
            "module = types.ModuleType('waiting'); module.app = noun_app(); sys.modules['waiting'] = module\n"
            "@module.app.command()\n"
            "async def waiting(shell: Shell) -> None:\n"
            "    print('ready', flush=True)\n"
            "    await asyncio.Event().wait()\n"
            "nouns.NOUNS = (nouns.Noun('waiting', 'waiting', ''),)\n"
            "nouns.register(main.app)\n"
            "sys.exit(main.run(['waiting']))\n"
        )
        with subprocess.Popen(
            [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        ) as process:
            assert process.stdout is not None
            assert process.stdout.readline() == "ready\n"
            process.send_signal(signal.SIGINT)
            _, errors = process.communicate()
        assert process.returncode == 130
        assert "Traceback" not in errors

    def test_shell_completion_knows_nouns_and_options(self) -> None:
        def complete(line: str) -> str:
            words = line.split(" ")
            environ = os.environ | {
                "_HOLDFAST_COMPLETE": "complete_bash",
                "COMP_WORDS": line,
                "COMP_CWORD": str(len(words) - 1),
            }
            script = str(Path(sys.executable).parent / "holdfast")
            return subprocess.run([script], env=environ, capture_output=True, text=True, check=True).stdout

        assert complete("holdfast confi").split() == ["config"]
        assert "--store" in complete("holdfast --").split()
        assert "--help" in complete("holdfast config --").split()


class TestMissingStore:
    def test_the_first_command_that_writes_makes_the_store(self, tmp_path: Path) -> None:
        store = f"file:{tmp_path / 'new'}"
        assert run(["events", "publish", "order.placed", "--store", store]) == 0
        assert run(["events", "list", "--store", store]) == 0
