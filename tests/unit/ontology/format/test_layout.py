"""Every key of the specification, as it is written there."""

import pytest

from holdfast.ontology.format import layout


def test_keys_are_those_of_the_specification() -> None:
    assert [layout.HEAD, layout.LOCK, layout.TYPES, layout.REGISTRY, layout.DROPPED, layout.ENGINE] == [
        "meta/head.json",
        "meta/locks/ontology_write.json",
        "meta/schema/types.json",
        "meta/schema/registry.json",
        "meta/schema/dropped.json",
        "meta/engine.json",
    ]
    assert layout.versions_key("entity", "Customer") == "meta/schema/versions/entity/Customer.json"
    assert layout.index_key("entity", "Customer") == "meta/indices/entities/Customer.json"
    assert layout.index_key("relation", "Order") == "meta/indices/relations/Order.json"
    assert layout.manifest_key(123, "a1b2c3d4") == "commits/123-a1b2c3d4/manifest.json"
    assert layout.data_key(123, "a1b2c3d4", "entity", "Customer") == "commits/123-a1b2c3d4/entities/Customer.parquet"
    assert layout.data_key(123, "a1b2c3d4", "relation", "Order") == "commits/123-a1b2c3d4/relations/Order.parquet"


@pytest.mark.parametrize(
    ("key", "span"),
    [
        (layout.snapshot_key("entity", "Customer", 1, 100, "a1b2c3d4"), (1, 100)),
        ("snapshots/entities/Customer-1-100-a1b2c3d4.parquet", (1, 100)),
        ("snapshots/relations/Order-50-150.parquet", (50, 150)),
        ("snapshots/entities/Customer-12-34-56789012.parquet", (12, 34)),
        ("snapshots/entities/Customer.parquet", None),
        ("commits/1-a/entities/Customer-1-2.parquet", None),
    ],
)
def test_snapshots_are_named_after_their_commits(key: str, span: tuple[int, int] | None) -> None:
    assert layout.commits_of_snapshot(key) == span


def test_only_keys_that_are_used_once_are_fit_for_a_cache() -> None:
    once = ["commits/1-a/manifest.json", "commits/1-a/entities/C.parquet", "meta/checkpoints/1-a1b2c3d4.json"]
    assert all(map(layout.immutable, [*once, "snapshots/entities/Customer-1-100-a1b2c3d4.parquet"]))
    again = ["snapshots/entities/Customer-1-100.parquet", "meta/head.json", "meta/indices/entities/Customer.json"]
    assert not any(map(layout.immutable, again))
