"""Between environment and module: actions and observations of every space."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium import spaces

from headrace.core.errors import ConfigError
from headrace.learning.connectors.action import ActionMapping
from headrace.learning.connectors.observation import ObservationMapping


def test_case_e2_the_environment_gets_the_clipped_action() -> None:
    raw = np.array([[2.5]], np.float32)
    mapped = ActionMapping(spaces.Box(-1, 1, (1,), np.float32))(raw)
    assert mapped.tolist() == [[1.0]]
    assert raw.tolist() == [[2.5]], "what is stored stays raw"


def test_case_e2_a_squashed_action_is_scaled_onto_asymmetric_bounds() -> None:
    space = spaces.Box(np.array([0, -2], np.float32), np.array([10, 2], np.float32))
    assert ActionMapping(space, "squash")(np.full((1, 2), 0.5, np.float32)).tolist() == [[7.5, 1.0]]


def test_unbounded_dimensions_pass_unchanged() -> None:
    space = spaces.Box(np.array([-np.inf, -1], np.float32), np.array([np.inf, 1], np.float32))
    for mode in ("clip", "squash"):
        assert ActionMapping(space, mode)(np.array([[7.0, 3.0]], np.float32)).tolist() == [[7.0, 1.0]]


def test_case_e1_the_start_of_a_discrete_space_is_added() -> None:
    mapping = ActionMapping(spaces.Discrete(3, start=-1))
    assert mapping(np.array([0, 1, 2])).tolist() == [-1, 0, 1]
    assert mapping.to_policy(np.array([-1, 0, 1])).tolist() == [0, 1, 2]
    with pytest.raises(ValueError, match="outside"):
        mapping.to_policy(np.array([2]))


def test_other_action_spaces_are_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Text"):
        ActionMapping(spaces.Text(3))


@pytest.mark.parametrize(
    ("space", "obs", "row"),
    [
        (spaces.Discrete(3, start=5), 6, [0, 1, 0]),
        (spaces.MultiBinary(3), np.array([1, 0, 1]), [1, 0, 1]),
        (spaces.MultiDiscrete([2, 2]), np.array([0, 1]), [1, 0, 0, 1]),
        (
            spaces.Dict(a=spaces.Box(-9, 9, (2,)), b=spaces.Discrete(2)),
            {"a": np.array([1.0, 2.0]), "b": 1},
            [1, 2, 0, 1],
        ),
        (spaces.Tuple((spaces.Box(-9, 9, (1,)), spaces.MultiBinary(1))), (np.array([4.0]), np.array([1])), [4, 1]),
    ],
)
def test_every_observation_space_becomes_one_row(space: spaces.Space, obs: object, row: list[float]) -> None:
    mapping = ObservationMapping(space)
    out = np.zeros(mapping.space.shape, mapping.space.dtype)
    mapping.write(obs, out)
    assert out.tolist() == row


def test_an_image_stays_uint8() -> None:
    assert ObservationMapping(spaces.Box(0, 255, (4, 4, 3), np.uint8)).space.dtype == np.uint8


def test_a_space_without_a_size_is_refused_by_name() -> None:
    with pytest.raises(ConfigError, match="Sequence"):
        ObservationMapping(spaces.Sequence(spaces.Discrete(2)))
