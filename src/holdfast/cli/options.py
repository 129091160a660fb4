"""Options that several commands have, and the types of their values."""

import getpass
from collections.abc import Callable, Sequence
from enum import StrEnum
from typing import Annotated, Any, TypeVar

import typer

from holdfast.base.clock import parse_moment, parse_span
from holdfast.base.errors import Invalid
from holdfast.cli.shell import nearest

T = TypeVar("T")


class Format(StrEnum):
    TABLE = "table"
    JSON = "json"
    JSONL = "jsonl"
    CSV = "csv"


def span(name: str, text: str) -> Any:
    """An option whose value is a span of time, as nanoseconds."""
    return typer.Option(name, metavar="SPAN", help=text, parser=_naming(name, parse_span))


def moment(name: str, text: str) -> Any:
    """An option whose value is a time, or a span before now, as nanoseconds since 1970."""
    return typer.Option(name, metavar="TIME", help=text, parser=_naming(name, _moment))


def choice(name: str, known: Sequence[str], text: str, *, metavar: str) -> Any:
    """An option whose value is one of a few words. A word that is not known is answered with the nearest one."""

    def check(word: str) -> str:
        if word not in known:
            raise Invalid(f"unknown value {word!r}", remedy=nearest(word, known, "use one of"))
        return word

    return typer.Option(name, metavar=metavar, help=f"{text}: {', '.join(known)}.", parser=_naming(name, check))


def _naming(option: str, parse: Callable[[str], T]) -> Callable[[str], T]:
    """The parser, with errors that begin with the name of the option."""

    def named(text: str) -> T:
        try:
            return parse(text)
        except Invalid as error:
            raise Invalid(f"{option}: {error}", remedy=error.remedy) from error

    return named


def _moment(text: str) -> int:
    from holdfast.base.ids import Ambient  # noqa: PLC0415  # a help page needs no clock

    return parse_moment(text, Ambient.system().clock.wall_ns())


def _user(given: str) -> str:
    """The name that is recorded: the user's, unless one is given."""
    if given:
        return given
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a machine that does not know its users
        return "unknown"


By = Annotated[
    str,
    typer.Option(
        "--by",
        metavar="NAME",
        help="Who does it, for the record (default: your user name).",
        callback=_user,
        show_default=False,
    ),
]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason; it is recorded.")]
Yes = Annotated[bool, typer.Option("--yes", help="Do not ask.")]
DryRun = Annotated[bool, typer.Option("--dry-run", help="Show what would be done, and change nothing.")]
Limit = Annotated[int, typer.Option(min=1, metavar="N", help="How many to list at most, the latest first.")]
Interval = Annotated[float, typer.Option(min=0.01, metavar="SECONDS", help="Seconds between two polls.")]
AsOf = Annotated[str | None, typer.Option(metavar="MOMENT", help="A commit's number, a time, or a tag.")]
OutputFormat = Annotated[Format | None, typer.Option("--format", help="The format of the output.")]
Namespace = Annotated[str, typer.Option("--namespace", "-n", metavar="NAME", help="The events' namespace.")]
MetricsAddress = Annotated[
    str | None, typer.Option(metavar="HOST:PORT", help="Serve /metrics and /health there; port 0 takes a free one.")
]
IfHead = Annotated[int | None, typer.Option(min=0, metavar="ID", help="Commit only if this commit is the head.")]
Absent = Annotated[bool, typer.Option("--expect-absent", help="Refuse it if any of the objects exists.")]
