"""What every command gets: the global options, settings, output, the store, and the one event loop.

A noun's module makes its ``app`` here. A command takes its ``Shell`` first, then its arguments and options::

    app = noun_app()

    @app.command()
    async def show(shell: Shell, key: str) -> None: ...
"""

import inspect
import signal
import sys
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from difflib import get_close_matches
from functools import cached_property, wraps
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer
from typer.core import TyperGroup

from holdfast.base.errors import HoldfastError, Refused
from holdfast.cli.output import Output, Terminated, printable

if TYPE_CHECKING:
    import asyncio

    from holdfast.base.config import Resolved, Settings  # imported late at run time: pydantic would slow every --help
    from holdfast.platform.open import Holdfast

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])
_UNCUT = 1_000  # characters of a sentence


class Group(TyperGroup):
    """A group whose help page has the whole first sentence of each command, wrapped; typer cuts it to one line."""

    def format_commands(self, ctx: Any, formatter: Any) -> None:
        commands = [(name, self.commands[name]) for name in self.list_commands(ctx)]
        with formatter.section("Commands"):
            formatter.write_dl([(name, each.get_short_help_str(_UNCUT)) for name, each in commands if not each.hidden])


class NounApp(typer.Typer):
    """The commands of a noun. Each is a function or a coroutine function, whose first argument is its ``Shell``."""

    def command(self, name: str | None = None, **settings: Any) -> Callable[[F], F]:
        def register(function: F) -> F:
            super(NounApp, self).command(name, **settings)(_called_by_typer(function))
            return function

        return register


def noun_app(*, is_group: bool = False, no_args_is_help: bool = True) -> NounApp:
    """An empty noun. A noun with one command is that command, unless it ``is_group``."""
    # Completion belongs to the whole command, and plain help pages need no rich.
    app = NounApp(cls=Group, add_completion=False, rich_markup_mode=None, no_args_is_help=no_args_is_help)
    if is_group:
        app.callback()(lambda: None)
    return app


def _called_by_typer(function: Callable[..., Any]) -> Callable[..., Any]:
    """The function with the context in place of the shell, since typer passes the context alone."""

    @wraps(function)
    def command(context: typer.Context, **given: Any) -> Any:
        shell = Shell.of(context)
        done = function(shell, **given)
        return shell.run(done) if inspect.iscoroutine(done) else done

    _, *rest = inspect.signature(function).parameters.values()
    first = inspect.Parameter("context", inspect.Parameter.POSITIONAL_OR_KEYWORD, annotation=typer.Context)
    command.__signature__ = inspect.Signature([first, *rest])  # type: ignore[attr-defined]  # a function may have one
    command.__annotations__ = {**function.__annotations__, "context": typer.Context}
    return command


@dataclass(frozen=True)
class Shell:
    out: Output
    store: str | None = None
    config: Path | None = None

    @staticmethod
    def of(context: typer.Context) -> "Shell":
        shell = context.find_object(Shell)
        if shell is None:
            raise RuntimeError("this command was started without the holdfast command around it")
        return shell

    @property
    def settings(self) -> "Settings":
        return self.resolved.settings

    @cached_property
    def resolved(self) -> "Resolved":
        from holdfast.base.config import resolve  # noqa: PLC0415  # see above

        flags = {} if self.store is None else {"store": {"uri": self.store}}
        return resolve(flags=flags, config=self.config)

    @asynccontextmanager
    async def open(self, *, new: bool = False, settings: "Settings | None" = None) -> "AsyncIterator[Holdfast]":
        """The platform on the store of ``--store``. ``new``: the command may be the first to write to this store."""
        from holdfast.platform.open import open_platform  # noqa: PLC0415  # a help page needs no store

        uri = self.settings.store.uri if new else self.existing_store()
        async with open_platform(uri, settings=settings or self.settings) as hf:
            yield hf

    def existing_store(self) -> str:
        """The address of the store, for commands that find nothing in a new one. A mistyped directory is an error."""
        from holdfast.objects.open import check_exists  # noqa: PLC0415  # as above
        from holdfast.objects.uri import StoreSpec  # noqa: PLC0415  # as above

        spec = StoreSpec.parse(self.settings.store.uri, self.settings)
        check_exists(spec, "give its address by --store or HOLDFAST_STORE; the first write makes a new store")
        return self.settings.store.uri

    def confirm(self, question: str, option: str) -> None:
        """Ask, and end the command unless the answer is yes. ``option`` gives the same answer beforehand."""
        if not sys.stdin.isatty():
            raise Refused(f"{question} Standard input is no terminal to answer from", remedy=f"add {option}")
        print(f"{printable(question)} [y/N]: ", end="", file=sys.stderr, flush=True)
        if sys.stdin.readline().strip().lower() not in ("y", "yes"):
            self.out.note("nothing was changed")
            raise typer.Exit(1)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run the command's coroutine on its loop. SIGTERM cancels it as Ctrl-C does, so that it can clean up."""
        import asyncio  # noqa: PLC0415  # a help page needs no event loop

        terminated = False

        def end(task: "asyncio.Task[T]") -> None:
            nonlocal terminated
            terminated = True
            task.cancel()

        async def main() -> T:
            task = asyncio.ensure_future(work)
            with suppress(RuntimeError):  # only the main thread can handle signals
                asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, end, task)
            return await task

        try:
            with asyncio.Runner() as runner:
                return runner.run(main())
        except asyncio.CancelledError:
            if terminated:
                raise Terminated from None
            raise


def stop_on_signals(stop: "asyncio.Event") -> None:
    """The first SIGTERM or SIGINT sets ``stop``, the second cancels this task, the third ends the process."""
    import asyncio  # noqa: PLC0415  # as above

    loop, task = asyncio.get_running_loop(), asyncio.current_task()

    def on_signal() -> None:
        if stop.is_set() and task is not None:
            task.cancel()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.remove_signal_handler(number)
        stop.set()

    for number in (signal.SIGTERM, signal.SIGINT):
        with suppress(RuntimeError, ValueError):  # only the main thread can handle signals
            loop.add_signal_handler(number, on_signal)


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """A remedy for a name that is not known: the one that is most like it, or all of them."""
    names = sorted(set(known))
    close = get_close_matches(name, names, n=1)
    return f"did you mean {close[0]}?" if close else f"{what}: {', '.join(names) or 'none yet'}"


def imported(target: str, example: str, error: type[HoldfastError]) -> list[Any]:
    """The objects named ``module:name``. The module is in the working directory or anywhere on the path."""
    module, colon, name = target.partition(":")
    if not colon or not module or not name:
        raise error(f"{target!r} is not MODULE:{example.partition(':')[2]}", remedy=f"write it like {example}")
    if (folder := str(Path.cwd())) not in sys.path:
        sys.path.insert(0, folder)
    try:
        found = getattr(import_module(module), name)
    except (Exception, SystemExit) as raised:  # a module may do anything when it is imported
        cause = (
            f"{raised}" if isinstance(raised, ImportError | AttributeError) else f"{type(raised).__name__}: {raised}"
        )
        remedy = raised.remedy if isinstance(raised, HoldfastError) else None
        raise error(f"{target}: {cause}", remedy=remedy or "name an importable module and what is in it") from raised
    return list(found) if isinstance(found, Iterable) else [found]
