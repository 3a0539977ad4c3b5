"""Case I5: which process goes where, from text; and which text is refused."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.errors import PlacementError
from headrace.system.cluster.grammar import Assignment, parse_placement, parse_ranks


def resources_by_process(text: str, num_resources: int) -> dict[int, tuple[int, ...]]:
    assignments = parse_placement(text, num_resources, component="actor")
    return {process: assignment.resources for assignment in assignments for process in assignment.processes}


def test_parts_of_all_three_kinds_mix() -> None:
    """Case I5, its worked example."""
    assert resources_by_process("0-1:0-3,3-5,7-10:7-14", 12) == {
        **{0: (0,), 1: (0,), 2: (1,), 3: (1,)},
        **{4: (3,), 5: (4,), 6: (5,)},
        **{7: (7,), 8: (7,), 9: (8,), 10: (8,), 11: (9,), 12: (9,), 13: (10,), 14: (10,)},
    }


def test_fewer_processes_than_resources_own_several_each() -> None:
    """Case I5."""
    assert resources_by_process("0-3:0-1", 12) == {0: (0, 1), 1: (2, 3)}


def test_an_assignment_names_processes_that_share_resources() -> None:
    assert parse_placement("0-1:0-3", 2, component="env") == [Assignment((0, 1), (0,)), Assignment((2, 3), (1,))]


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("0-3,2-5", "resource 2 is given to two parts"),
        ("3-1", "did you mean '1-3'"),
        ("0-12", "needs resource 12, but there are 12"),
        ("", "is empty"),
        ("  ", "is empty"),
        ("0-2:0-1", "does not come out even"),
        ("a-b", "'a-b' is no rank"),
        ("0-3:4-7", "process 0-3 has no place"),
        ("1:30", "process 0-29 has no place"),
        ("-1", "'-1' is no rank"),
        ("0,", "'' is no rank"),
        ("0:", "'' is no rank"),
        ("0:0:0", "'0:0' is no rank"),
        ("0:all", "'all' is no rank"),
        ("0-1:0-1,2:1", "process 1 is placed twice"),
        ("0,2:2", "process 1 has no place"),
        ("all,0", "stands alone"),
        ("0:0-999999999", "at most 100000"),
        ("\u0660-\u0663", "is no rank"),
    ],
)
def test_a_text_that_cannot_be_is_refused_by_component_and_text(text: str, what: str) -> None:
    """Case I5: every refusal of its list, and some more."""
    with pytest.raises(PlacementError) as caught:
        parse_placement(text, 12, component="actor")
    assert caught.value.key == "cluster.component_placement.actor"
    assert caught.value.value == text
    assert what in str(caught.value)


@pytest.mark.parametrize("number", [0, 3, 90, -1])
def test_a_number_where_text_was_meant_is_told_to_be_quoted(number: int) -> None:
    with pytest.raises(PlacementError, match="quote it"):
        parse_placement(number, 12, component="actor")


def test_a_sexagesimal_number_is_explained() -> None:
    """YAML 1.1 reads an unquoted `1:30` as 90."""
    with pytest.raises(PlacementError, match="YAML reads an unquoted 1:30 as this number"):
        parse_placement(90, 12, component="actor")


@pytest.mark.parametrize("value", [None, True, 1.5, ["0-3"]])
def test_what_is_not_text_is_refused(value: object) -> None:
    with pytest.raises(PlacementError):
        parse_placement(value, 12, component="actor")


def test_all_is_every_resource() -> None:
    assert resources_by_process("all", 3) == {0: (0,), 1: (1,), 2: (2,)}
    assert resources_by_process("all:0-1", 4) == {0: (0, 1), 1: (2, 3)}
    with pytest.raises(PlacementError, match="does not come out even"):
        resources_by_process("all:0-1", 3)


def test_nothing_can_be_placed_on_no_resources() -> None:
    with pytest.raises(PlacementError, match="0 resources"):
        resources_by_process("all", 0)


def test_space_around_the_marks_is_ignored() -> None:
    assert resources_by_process(" 0 - 1 : 0-3 , 3 ", 12) == resources_by_process("0-1:0-3,3", 12)


def test_explicit_processes_may_stand_in_any_order() -> None:
    assert resources_by_process("0:1,1:0", 2) == {0: (1,), 1: (0,)}


@given(st.lists(st.tuples(st.integers(1, 3), st.integers(1, 3), st.booleans(), st.integers(0, 2)), min_size=1))
def test_processes_are_numbered_without_gap_and_resources_shared_evenly(
    parts: list[tuple[int, int, bool, int]],
) -> None:
    """From random parts (few, share, which side has more, free resources before it) the mapping is the one meant."""
    text, expected, resource, process = [], {}, 0, 0
    for few, share, more_processes, gap in parts:
        resource += gap
        resources = few if more_processes else few * share
        processes = few * share if more_processes else few
        text.append(f"{resource}-{resource + resources - 1}:{process}-{process + processes - 1}")
        for i in range(processes):
            per_process = max(resources // processes, 1)
            first = resource + (i * resources // processes if more_processes else i * per_process)
            expected[process + i] = tuple(range(first, first + per_process))
        resource += resources
        process += processes
    assert resources_by_process(",".join(text), resource) == expected


@given(st.text(alphabet="0123456789-:, all", max_size=12), st.integers(0, 20))
def test_any_text_is_either_refused_or_places_processes_from_0(text: str, num_resources: int) -> None:
    try:
        placed = resources_by_process(text, num_resources)
    except PlacementError:
        return
    assert sorted(placed) == list(range(len(placed))) != []
    assert all(0 <= rank < num_resources for ranks in placed.values() for rank in ranks)


def test_ranks_are_read_from_a_number_a_list_or_text() -> None:
    assert parse_ranks(3, key="k") == (3,)
    assert parse_ranks([2, 0], key="k") == (2, 0)
    assert parse_ranks("0-2,5", key="k") == (0, 1, 2, 5)
    assert parse_ranks(["0-1", 4], key="k") == (0, 1, 4)
    for wrong in ("", "x", True, None, -1, [1, 1], "0-1,1"):
        with pytest.raises(PlacementError):
            parse_ranks(wrong, key="k")
