"""Options of a reader or a writer, as Spark passes them: texts, under names whose case does not matter.

A name that is not known is refused: an ``as_off`` that is silently ignored would give the wrong rows.

Where Spark makes a table of its catalog, it passes the options under other names (``option.store``) among properties of
its own, and never again. So they are kept in the schema, which Spark does keep (``KEPT``).
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path

from holdfast.base.config import Settings, load
from holdfast.base.errors import Invalid, NotFound
from holdfast.objects.open import carried
from holdfast.objects.uri import StoreSpec

COMMON = ("store", "table", "path", "config")
READING = ("columns", "partitions")
OF_CATALOG = "option."
"""Begins the name of an option where Spark makes a table of its catalog."""
KEPT = "holdfast.options"
"""Metadata of the first column of such a table: its options."""
CREATE = "a table of Spark's catalog is to be created without a list of columns, or its options are lost"
INSERT = "Spark gives no options to INSERT into a table of its catalog, or to CREATE TABLE ... AS: use a temporary view"
_FLAGS = {"true": True, "1": True, "yes": True, "false": False, "0": False, "no": False}


@dataclass(frozen=True)
class Given:
    options: Mapping[str, str]
    """By names in lower case."""
    of_catalog: bool = False
    """Spark makes a table of its catalog."""

    @classmethod
    def of(cls, options: Mapping[str, str]) -> "Given":
        found = {str(name).lower(): str(value) for name, value in options.items()}
        of_catalog = {name: value for name, value in found.items() if name.startswith(OF_CATALOG)}
        if of_catalog and "provider" in found:
            return cls({name.removeprefix(OF_CATALOG): value for name, value in of_catalog.items()}, of_catalog=True)
        return cls(found)

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

    def settings(self) -> Settings:
        config = self.text("config")
        return load(config=None if config is None else Path(config))

    def spec(self, *, reading: bool = True) -> StoreSpec:
        """The store that is meant; without the option, the one that the settings of this process name. With the keys of
        this process, so that tasks open it as the same identity.
        """
        settings, uri = self.settings(), self.text("store")
        if uri is None and "store" not in settings.model_fields_set:
            what, of_catalog = ("read", CREATE) if reading else ("write", INSERT)
            raise Invalid(
                f"it is not said which store to {what}",
                remedy=f'add .option("store", "s3://bucket/prefix"), or file:./data; {of_catalog}',
            )
        spec = StoreSpec.parse(uri if uri is not None else settings.store.uri, settings)
        if spec.scheme == "memory":
            raise Invalid(f"{spec.uri}: a store in memory is not there for other processes", remedy="use file: or s3:")
        if reading and spec.scheme == "file" and not Path(spec.place).is_dir():  # to read it would make it
            raise NotFound(f"there is no folder {spec.place}", remedy="check the option store, and where Spark runs")
        return carried(spec)

    def check(self, table: str, known: Iterable[str]) -> None:
        """``Invalid`` for an option that ``table`` does not have."""
        names = sorted({*COMMON, *known})
        for name in self.options:
            if name not in names:
                near = get_close_matches(name, names, n=1)
                hint = f"did you mean {near[0]}?" if near else f"those of {table} are: {', '.join(names)}"
                raise Invalid(f"{table} has no option {name!r}", remedy=hint)
