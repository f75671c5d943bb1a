"""What both ways into a mirror are given: batches whose changes are their outcomes."""

from __future__ import annotations

from collections import Counter

from benchmarks.lakeways import Mix


def test_a_batch_changes_no_key_twice_and_only_rows_that_are_there() -> None:
    """A key that came twice would have to be folded first, which a MERGE does not do."""
    mix = Mix(1_000)
    held: set[object] = set(mix.keys)

    for _ in range(3):
        batch = mix.batch(500)
        keys = {operation: {data["id"] for op, data in batch if op == operation}
                for operation in ("INSERT", "UPDATE", "DELETE")}  # fmt: skip

        assert Counter(op for op, _ in batch) == {"INSERT": 300, "UPDATE": 150, "DELETE": 50}
        assert len({data["id"] for _, data in batch}) == 500
        assert not keys["INSERT"] & held
        assert keys["UPDATE"] | keys["DELETE"] <= held
        held = (held | keys["INSERT"]) - keys["DELETE"]
        assert len(mix.keys) == len(held)
        assert set(mix.keys) == held
