"""Entry point of the ``holdfast`` command.

Every failure leaves here as one line on standard error and an exit code from the table in ``holdfast.base.errors``; a
traceback appears only with ``--verbose``. Ctrl-C exits with 130, SIGTERM with 143, and a closed pipe (``| head``) with
141.
"""

import sys
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from typer.main import get_command

from holdfast.base.errors import TABLE, HoldfastError
from holdfast.cli.nouns import LazyGroup, register
from holdfast.cli.output import (
    INTERRUPTED,
    PIPE_CLOSED,
    TERMINATED,
    Output,
    PipeClosed,
    Terminated,
    printable,
    silence_stdout,
)
from holdfast.cli.shell import Shell

app = typer.Typer(
    name="holdfast",
    cls=LazyGroup,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["--help", "-h"]},
)
register(app)


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    store: Annotated[
        str | None,
        typer.Option("--store", metavar="URI", help="The store to use (HOLDFAST_STORE; default file:.holdfast)."),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option("--config", metavar="PATH", help="Settings file (HOLDFAST_CONFIG; default holdfast.toml here)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of text.")] = False,
    verbose: Annotated[bool, typer.Option("--verbose", help="Show tracebacks and debug logs.")] = False,
    version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """A data platform that needs nothing but a bucket.

    The options below are accepted anywhere on the line, before or after the command.
    """
    shell = Shell(Output(as_json=as_json, verbose=verbose), store=store, config=config)
    context.obj = shell
    if version:
        _print_version(shell.out)
        raise typer.Exit
    if context.invoked_subcommand is None:
        print(context.get_help())
        raise typer.Exit
    if verbose:
        _log_to_stderr()


def run(argv: Sequence[str]) -> int:
    """Run one command line; the exit code. Never raises for a failure of the command."""
    arguments = globals_first(argv)
    globals_end = arguments.index("--") if "--" in arguments else len(arguments)
    out = Output(as_json="--json" in arguments[:globals_end], verbose="--verbose" in arguments[:globals_end])
    try:
        result = get_command(app).main(arguments, prog_name="holdfast", standalone_mode=False)
        sys.stdout.flush()
    except (PipeClosed, BrokenPipeError):
        silence_stdout()
        return PIPE_CLOSED
    except (KeyboardInterrupt, typer.Abort):
        out.note("interrupted")
        return INTERRUPTED
    except Terminated:
        out.note("terminated")
        return TERMINATED
    except Exception as error:  # noqa: BLE001  # the edge: every failure becomes one line and an exit code
        return _failed(out, error)
    return result if isinstance(result, int) else 0


def main() -> None:
    """Entry point of the script: this process runs one command and exits."""
    sys.exit(run(sys.argv[1:]))


def _failed(out: Output, error: Exception) -> int:
    cause = _first_cause(error)
    if out.verbose:
        print("\n".join(map(printable, "".join(traceback.format_exception(error)).splitlines())), file=sys.stderr)
    if isinstance(cause, HoldfastError):
        out.error(cause)
        return cause.exit_code
    usage = getattr(cause, "format_message", None)
    if callable(usage):  # how typer reports a wrong command line
        return _misused(out, str(usage()), cause)
    hint = None if out.verbose else "run it again with --verbose to see where this happened"
    out.failure("error", _one_line(cause), hint)
    return TABLE["error"].exit_code


def _first_cause(error: BaseException) -> BaseException:
    """The first exception inside nested exception groups, which task groups raise."""
    while isinstance(error, BaseExceptionGroup):
        error = error.exceptions[0]
    return error


def _one_line(error: BaseException) -> str:
    text = " ".join(str(error).split())
    name = type(error).__name__
    return f"{name}: {text}" if text else name


def _misused(out: Output, message: str, error: Any) -> int:
    context = getattr(error, "ctx", None)
    path = context.command_path if context else "holdfast"
    if type(error).__name__ == "NoArgsIsHelpError":  # the message is the whole help page of a noun without its verb
        if not out.as_json:
            print(message, file=sys.stderr)
            return TABLE["invalid"].exit_code
        message = f"{path} needs a command"
    message = message.replace("Value error, ", "")  # by which pydantic, typer's parser, begins the reason
    out.failure("invalid", message.rstrip("."), f"see {path} --help")
    return TABLE["invalid"].exit_code


def _print_version(out: Output) -> None:
    from importlib.metadata import version  # noqa: PLC0415  # slow, and needed only here

    number = version("holdfast")
    out.line(f"holdfast {number}", document={"version": number})


def _log_to_stderr() -> None:
    import logging  # noqa: PLC0415  # only with --verbose

    class Printable(logging.Formatter):
        """Escapes messages, which quote keys and values from the store."""

        def format(self, record: logging.LogRecord) -> str:
            return "\n".join(map(printable, super().format(record).split("\n")))

    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(Printable("%(levelname)s %(name)s: %(message)s"))
    logging.basicConfig(level=logging.DEBUG, handlers=[handler])


TAKES_VALUE = frozenset({"--store", "--config"})
FLAGS = frozenset({"--json", "--verbose", "--version"})


def globals_first(argv: Sequence[str]) -> list[str]:
    """The arguments with the global options before a ``--`` moved to the front, as the parser needs them."""
    front: list[str] = []
    rest: list[str] = []
    items = iter(argv)
    for item in items:
        name, equals, _ = item.partition("=")
        if item == "--":
            rest += [item, *items]
        elif item in FLAGS or (equals and name in TAKES_VALUE):
            front.append(item)
        elif item in TAKES_VALUE:
            value = next(items, None)
            if value is None:
                # Without the rest, so that the parser reports the missing value and does not take the noun for it.
                return [*front, item]
            front += [item, value]
        else:
            rest.append(item)
    return front + rest
