"""The table of nouns. A noun's module is imported only when the noun is used, which keeps ``--help`` fast.

A module named here has ``app``, a ``NounApp`` with one command or several. The summary is here rather than in the
module because the help page must not import it; a noun with several commands gets it from here.
"""

from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.main import get_command

from holdfast.cli.shell import Group


class Noun(NamedTuple):
    name: str
    module: str
    summary: str


NOUNS: tuple[Noun, ...] = (
    Noun("agent", "holdfast.cli.telemetry.agent", "Measure this host and send it to collectors, losing nothing."),
    Noun(
        "audit",
        "holdfast.cli.pipeline.audit",
        "Check everything in a store against everything else, and keep the result.",
    ),
    Noun(
        "authority",
        "holdfast.cli.telemetry.authority",
        "Show which store accepts telemetry; promote a copy, add an alias.",
    ),
    Noun("collector", "holdfast.cli.telemetry.collector", "Accept telemetry from agents, each batch exactly once."),
    Noun("config", "holdfast.cli.config", "Show the settings in effect and where each comes from."),
    Noun("conflicts", "holdfast.cli.telemetry.conflicts", "List and resolve conflicts over the identity of batches."),
    Noun(
        "demo",
        "holdfast.cli.demo.command",
        "Kill processes on a local store, and check that nothing is lost.",
    ),
    Noun("doctor", "holdfast.cli.doctor", "Check that a store keeps the promises that Holdfast rests on."),
    Noun("events", "holdfast.cli.events", "Publish, list and replay events."),
    Noun(
        "gc",
        "holdfast.cli.pipeline.gc",
        "Remove garbage and data past its retention, and record every deletion.",
    ),
    Noun("logs", "holdfast.cli.telemetry.logs", "Search the logs of all agents."),
    Noun(
        "metrics",
        "holdfast.cli.telemetry.metrics",
        "List metrics and their labels, and show their values over time.",
    ),
    Noun("onto", "holdfast.cli.onto.command", "Inspect and maintain typed entities and relations."),
    Noun("pipeline", "holdfast.cli.pipeline.command", "Derive rollups and indexes from accepted telemetry."),
    Noun(
        "policy",
        "holdfast.cli.telemetry.policy",
        "Print policies that protect accepted telemetry, and check a live store for them.",
    ),
    Noun("runs", "holdfast.cli.runs", "List durable runs, and fork, cancel, retry or resume them."),
    Noun("sim", "holdfast.cli.sim", "Simulate the protocols under lost answers, crashes and wrong clocks."),
    Noun("sql", "holdfast.cli.onto.sql", "Query types with SQL: every entity and relation type is a table, read-only."),
    Noun("tokens", "holdfast.cli.telemetry.tokens", "Add, list and revoke the tokens that agents send to collectors."),
    Noun("worker", "holdfast.cli.worker", "Hand events to handlers until a signal ends it."),
)


class LazyGroup(Group):
    """A group whose commands are placeholders until one is chosen."""

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        name, placeholder, rest = super().resolve_command(ctx, args)
        noun = next((noun for noun in NOUNS if noun.name == name), None)
        return name, placeholder if noun is None else load(noun), rest


def load(noun: Noun) -> Any:
    """The noun's command."""
    command = get_command(import_module(noun.module).app)
    command.name = noun.name
    command.help = command.help or noun.summary
    return command


def register(app: typer.Typer) -> None:
    for noun in NOUNS:
        app.command(noun.name, help=noun.summary)(_placeholder)


def _placeholder() -> None:
    """Has a noun's place in the help page; ``LazyGroup`` replaces it by the real command before it is called."""
