"""Listing of a local store: keys in order, folder by folder, without loading the world.

A folder's names are read whole and sorted by the keys that they stand for; those below are read when their turn comes.
Object ``a`` comes before ``a-b``, and what lies under ``a/`` comes after it, because ``-`` sorts before ``/``: so a
folder has two places in the order, one for the object in it that has its name and one for the rest.

Files whose names no key maps to, links and special files are passed over.
"""

from collections.abc import Iterator

from holdfast.objects.local.paths import CONTINUED, Names, names_component
from holdfast.objects.local.tree import Tree
from holdfast.objects.store import MAX_KEY_BYTES, Entry


def walk(tree: Tree, prefix: str, *, after: str | None, delimiter: bool) -> Iterator[Entry | str]:
    """Objects under ``prefix``, and with ``delimiter`` folders in place of what lies deeper, in key order."""
    after = after or ""  # which comes before every key
    ahead = [_items(tree, prefix, tree.names(prefix[:-1]) if prefix else ())]
    while ahead:
        item, names = next(ahead[-1], ("", ()))
        if not item:
            ahead.pop()
        elif not item.endswith("/"):
            if item > after and (found := tree.look(names)) is not None:
                yield Entry(item, found.st_size, found.st_mtime_ns)
        elif delimiter:
            if item > after and _holds_objects(tree, item):
                yield item
        elif item > after or after.startswith(item):
            ahead.append(_items(tree, item, names))


def _holds_objects(tree: Tree, folder: str) -> bool:
    return next(walk(tree, folder, after=None, delimiter=False), None) is not None


def _items(tree: Tree, prefix: str, folder: Names) -> Iterator[tuple[str, Names]]:
    """What a folder may hold: objects, and the folders among them once more with a slash."""
    items: list[tuple[str, Names]] = []
    room = MAX_KEY_BYTES - len(prefix.encode())
    for component, names, is_folder in _components(tree, folder):
        if len(component.encode()) <= room:
            items.append((prefix + component, names))
            if is_folder:
                items.append((f"{prefix}{component}/", names))
    return iter(sorted(items))


def _components(tree: Tree, folder: Names, long: Names = ()) -> Iterator[tuple[str, Names, bool]]:
    """The components in a folder, with those that go on in folders of their own; True where it is a folder."""
    for name, is_folder in tree.scan(folder + long).items():
        names = (*long, name)
        if is_folder and name.endswith(CONTINUED):
            yield from _components(tree, folder, names)
        elif (component := names_component(names, fold=tree.fold)) is not None:
            yield component, (*folder, *names), is_folder
