"""Global options are accepted anywhere: ``holdfast doctor --json`` is ``holdfast --json doctor``.

``hoist`` is pure: it moves the global options that stand before a ``--`` to the front, in the order given, and touches
nothing else. No command may therefore have an option with one of these names; a test walks all commands to see to it.
"""

from collections.abc import Sequence

TAKES_VALUE = frozenset({"--store", "--config"})
FLAGS = frozenset({"--json", "--verbose", "--version"})


def hoist(argv: Sequence[str]) -> list[str]:
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
                # Alone in front, so that the parser complains of the missing value instead of eating the noun.
                return [*front, item]
            front += [item, value]
        else:
            rest.append(item)
    return front + rest


def from_noun_on(argv: Sequence[str]) -> list[str]:
    """The line from its noun on."""
    items = hoist(argv)
    while items and (items[0] in FLAGS or items[0].partition("=")[0] in TAKES_VALUE):
        items = items[2 if items[0] in TAKES_VALUE else 1 :]
    return items
