"""Upgraders: functions from the fields of an older version of a schema to those of a newer one.

    @upgrader(Customer, from_version=1, to_version=2)
    def split_name(fields):
        first, _, last = fields.pop("name").partition(" ")
        return {**fields, "first": first, "last": last}

The same functions migrate a type and read rows of older versions. Their argument and result are the fields as JSON
values, so a datetime is a text. Versions without an upgrader differ only by optional fields. An upgrader must return
the same result each time, because rows that were not rewritten are upgraded whenever they are read.
"""

import hashlib
import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

from holdfast.base.errors import HoldfastError, Invalid
from holdfast.ontology.types.errors import UnreadableRow

if TYPE_CHECKING:
    from holdfast.ontology.types.model import Mixin
    from holdfast.ontology.types.typeinfo import TypeInfo

Upgrade = Callable[[dict[str, Any]], dict[str, Any]]
U = TypeVar("U", bound=Upgrade)


@dataclass(frozen=True, slots=True)
class Step:
    from_version: int
    to_version: int
    function: Upgrade

    @property
    def label(self) -> str:
        return f"{self.from_version} to {self.to_version} by {getattr(self.function, '__name__', 'a function')}"


def upgrader(of: "type[Mixin]", *, from_version: int, to_version: int) -> Callable[[U], U]:
    """Declare how rows of one version of a type become rows of another. A derived class has its own versions."""
    info: TypeInfo | None = of.__type_info__
    if info is None or info.python is not of:
        raise Invalid(f"{of.__name__} is not an entity or relation type, so it has no versions")
    known = info
    if not 1 <= from_version < to_version:
        raise Invalid(
            f"an upgrader of {known.name} leads from version {from_version} to {to_version}",
            remedy="versions count from 1, and an upgrader leads forward",
        )

    def add(function: U) -> U:
        for step in known.upgraders:
            if step.from_version < to_version and from_version < step.to_version:
                raise Invalid(f"{known.name} has two upgraders from version {max(from_version, step.from_version)}")
        made = [*known.upgraders, Step(from_version, to_version, function)]
        known.upgraders = tuple(sorted(made, key=lambda step: step.from_version))
        return function

    return add


def fingerprint(steps: Sequence[Step]) -> str:
    """A digest of the upgraders' code."""
    found = hashlib.blake2b(digest_size=8)
    for step in steps:
        code = getattr(step.function, "__code__", None)
        what = (code.co_code, code.co_names, repr(code.co_consts)) if code is not None else repr(step.function)
        found.update(repr((step.from_version, step.to_version, what)).encode())
    return found.hexdigest()


def concerned(info: "TypeInfo", version_id: int) -> bool:
    """Whether rows of this version are upgraded."""
    return any(step.from_version >= version_id for step in info.upgraders)


def upgraded(info: "TypeInfo", key: str, fields_json: str, version_id: int) -> str:
    """The fields as of the newest version. ``UnreadableRow`` if an upgrader fails; ``key`` is the row's."""
    text = fields_json
    fields = json.loads(text)
    for step in info.upgraders:
        if step.from_version < version_id:
            continue
        try:
            fields = step.function(fields)
            text = json.dumps(fields)
        except HoldfastError:
            raise
        except Exception as error:  # an upgrader is the user's code: the error names the row and the function
            raise UnreadableRow(
                f"{info.name} {key!r}: the upgrader from version {step.label} failed: {error!r}",
                remedy="mend the upgrader",
            ) from error
        if not isinstance(fields, dict):
            raise UnreadableRow(
                f"{info.name}: the upgrader from version {step.label} gave a {type(fields).__name__}",
                remedy="give back the fields, as a dict",
            )
        version_id = step.to_version
    return text
