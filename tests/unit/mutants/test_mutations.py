"""The faults that `make mutants` puts into modules."""

from __future__ import annotations

from tests.mutants.mutations import mutants_of

SOURCE = '''
LIMIT = 5

def clip(values, strict=True):
    """Text is left alone: 1 < 2."""
    if not values:
        raise ValueError(f"{1 + 1} is no list")
    info("clipped", count=7)
    found = max(value for value in values if value < LIMIT and value >= 0)
    return [found for _ in zip(values, values, strict=True)] + [found]
'''


def test_a_mutant_changes_one_thing_that_decides_and_no_words() -> None:
    names = [mutant.name for mutant in mutants_of("m", SOURCE)]

    assert names == [
        "clip: True -> False",
        "clip: not values -> values",
        "clip: raise ValueError(f'{1 + 1} is no list') -> pass",
        "clip: max((value for value in values if value < LIMIT and value >= 0))"
        " -> min((value for value in values if value < LIMIT and value >= 0))",
        "clip: value < LIMIT and value >= 0 -> value < LIMIT or value >= 0",
        "clip: value < LIMIT -> value <= LIMIT",
        "clip: value >= 0 -> value > 0",
        "clip: 0 -> 1",
        "clip: [found for _ in zip(values, values, strict=True)] + [found]"
        " -> [found for _ in zip(values, values, strict=True)] - [found]",
    ]


def test_a_mutant_runs_as_a_module_does() -> None:
    [fault] = [m for m in mutants_of("m", SOURCE) if m.name.startswith("clip: max")]
    scope: dict[str, object] = {"info": lambda *_, **__: None}

    exec(fault.compile("m.py"), scope)

    clip = scope["clip"]
    assert callable(clip)
    assert clip([1, 2, 9]) == [1, 1, 1, 1]
