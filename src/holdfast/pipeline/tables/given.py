"""Options of a reader, as Spark hands them over: texts, under names whose case does not matter.

A name that a table does not know is refused: an ``as_off`` that is silently passed over would give the wrong rows.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from holdfast.base.config import load
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.uri import StoreSpec

COMMON = ("store", "table", "path", "columns", "partitions", "config")
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Given:
    options: Mapping[str, str]
    """By names in lower case."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Given":
        return cls({str(name).lower(): str(value) for name, value in options.items()})

    def text(self, name: str) -> str | None:
        found = self.options.get(name)
        return found.strip() or None if found is not None else None

    def texts(self, name: str) -> tuple[str, ...]:
        """Names with commas between them."""
        return tuple(each.strip() for each in (self.text(name) or "").split(",") if each.strip())

    def flag(self, name: str) -> bool:
        text = (self.text(name) or "false").lower()
        if text not in _FLAGS:
            raise Invalid(f"option {name}: {text!r} is neither true nor false")
        return _FLAGS[text]

    def whole(self, name: str, *, least: int = 0) -> int | None:
        text = self.text(name)
        if text is None:
            return None
        if not text.isdecimal() or int(text) < least:
            raise Invalid(f"option {name}: {text!r} is no whole number from {least} on")
        return int(text)

    @property
    def table(self) -> str:
        name = self.text("table") or self.text("path")
        if name is None:
            raise Invalid(
                "it is not said which table to read",
                remedy='add .option("table", "Customer"), or samples, rollup, accepted, runs, events, changes',
            )
        return name

    def spec(self) -> StoreSpec:
        """The store that is meant; without the option, the one that the settings of this process name."""
        config = self.text("config")
        settings = load(config=None if config is None else Path(config))
        uri = self.text("store")
        if uri is None and "store" not in settings.model_fields_set:
            raise Invalid(
                "it is not said which store to read",
                remedy='add .option("store", "s3://bucket/prefix"), or file:./data',
            )
        spec = StoreSpec.parse(uri if uri is not None else settings.store.uri, settings)
        if spec.scheme == "memory":
            raise Invalid(f"{spec.uri}: a store in memory is not there for other processes", remedy="use file: or s3:")
        if spec.scheme == "file" and not Path(spec.place).is_dir():  # to read it would make it
            raise NotFound(f"there is no folder {spec.place}", remedy="check the option store, and where Spark runs")
        return spec

    def check(self, table: str, known: Iterable[str]) -> None:
        """``Invalid`` for an option that the table does not have."""
        names = sorted({*COMMON, *known})
        for name in self.options:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                told = f"did you mean {near[0]}?" if near else f"those of {table} are: {', '.join(names)}"
                raise Invalid(f"table {table} has no option {name!r}", remedy=told)
