"""Strict configuration: case J1, line by line, and the way back to YAML."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import pytest
from hypothesis import given
from hypothesis import strategies as st

from headrace.core.config import build, load_recipe, parse_value, save_yaml, to_dict
from headrace.core.errors import ConfigError
from headrace.core.registry import Registry
from headrace.runners.config import EmbodiedRecipe

QUICKSTART = Path(__file__).parents[2] / "recipes" / "quickstart.yaml"


@dataclass(frozen=True, kw_only=True)
class Inner:
    gamma: float = 0.99
    steps: int = 1
    mode: Literal["sync", "async"] = "sync"
    sizes: tuple[int, ...] = (64, 64)
    pair: tuple[int, str] = (1, "a")
    note: str | None = None
    flag: bool = False

    def __post_init__(self) -> None:
        if self.gamma > 1:
            raise ConfigError("gamma", self.gamma, "must be at most 1")


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner = field(default_factory=Inner)
    name: str
    groups: tuple[Inner, ...] = ()
    extra: dict[str, Any] = field(default_factory=dict)


def _refused(data: dict[str, Any]) -> ConfigError:
    with pytest.raises(ConfigError) as caught:
        build(Outer, {"name": "x", **data})
    return caught.value


def test_nested_data_become_frozen_dataclasses() -> None:
    config = build(Outer, {"name": "n", "inner": {"gamma": 1, "sizes": [1, 2, 3]}, "groups": [{"steps": 2}]})
    assert config == Outer(name="n", inner=Inner(gamma=1.0, sizes=(1, 2, 3)), groups=(Inner(steps=2),))
    assert isinstance(config.inner.gamma, float)
    with pytest.raises(dataclasses.FrozenInstanceError):
        config.name = "m"  # type: ignore[misc]


@pytest.mark.parametrize(
    ("data", "key", "says"),
    [
        ({"inner": {"gama": 0.9}}, "inner.gama", "did you mean 'gamma'"),
        ({"inner": {"ste-ps": 1}}, "inner.ste-ps", "did you mean 'steps'"),
        ({"gamma": 0.9}, "gamma", "belongs in 'inner'"),
        ({"inner": {"mode": "asinc"}}, "inner.mode", "did you mean 'async'"),
        ({"inner": {"steps": "many"}}, "inner.steps", "must be an int"),
        ({"inner": {"steps": True}}, "inner.steps", "must be an int"),
        ({"inner": {"gamma": 1.5}}, "inner.gamma", "at most 1"),
        ({"inner": {"pair": [1]}}, "inner.pair", "must have 2 entries"),
        ({"inner": {"sizes": [1, "x"]}}, "inner.sizes.1", "must be an int"),
        ({"inner": {"sizes": "12"}}, "inner.sizes", "must be a list"),
        ({"inner": {"flag": "yes"}}, "inner.flag", "must be a bool"),
        ({"inner": None}, "inner", "must be a section"),
        ({"groups": [{}, {"gama": 1}]}, "groups.1.gama", "did you mean 'gamma'"),
        ({"name": 3}, "name", "quote it"),
    ],
)
def test_case_j1_what_is_not_known_is_refused_with_its_full_path(data: dict[str, Any], key: str, says: str) -> None:
    error = _refused(data)
    assert error.key == key
    assert says in error.remedy


def test_a_missing_key_is_named() -> None:
    with pytest.raises(ConfigError, match="name = None: is required"):
        build(Outer, {})


@pytest.mark.parametrize("text", ["1e-3", "0.001", "1.0e-3"])
def test_a_number_in_any_notation_is_a_float(text: str) -> None:
    assert build(Inner, {"gamma": text}).gamma == 0.001
    assert build(Inner, {"steps": "1e3"}).steps == 1000


def test_a_quoted_whole_number_keeps_every_digit() -> None:
    assert build(Inner, {"steps": "9007199254740993"}).steps == 9007199254740993


@pytest.mark.parametrize(
    ("text", "value"),
    [("1:30", "1:30"), ("010", "010"), ("yes", "yes"), ("1_000", "1_000"), ("0-3", "0-3"), ("true", True), ("7", 7)],
)
def test_a_scalar_is_what_it_looks_like(text: str, value: object) -> None:
    assert parse_value(text) == value


def test_a_key_that_stands_twice_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: 1\nb: 2\na: 3\n")
    with pytest.raises(ConfigError, match="line 3"):
        load_recipe(path)


def test_a_section_may_be_merged_into_another(tmp_path: Path) -> None:
    path = tmp_path / "r.yaml"
    path.write_text("a: &a {x: 1, y: 2}\nb:\n  <<: *a\n  y: 3\n")
    assert load_recipe(path)["b"] == {"x": 1, "y": 3}


@pytest.mark.parametrize(
    ("content", "says"),
    [(b"\x89PNG\xff", "is no text"), (b"? [a]\n: 1\n", "cannot be a key"), (b"a: [1", "is no YAML")],
)
def test_a_file_that_is_no_recipe_is_refused(tmp_path: Path, content: bytes, says: str) -> None:
    path = tmp_path / "r.yaml"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=says):
        load_recipe(path)


def test_a_recipe_inherits_and_overrides(tmp_path: Path) -> None:
    (tmp_path / "base.yaml").write_text("inner: {gamma: 0.5, steps: 2}\nname: base\n")
    (tmp_path / "r.yaml").write_text("defaults: base.yaml\ninner: {steps: 3}\nextra: {twice: '${inner.steps}'}\n")
    data = load_recipe(tmp_path / "r.yaml", ["inner.sizes=[4]", "extra.new.deep=1"])
    assert data["inner"] == {"gamma": 0.5, "steps": 3, "sizes": [4]}
    assert data["extra"]["new"] == {"deep": 1}
    assert str(data["extra"]["twice"]) == "3"
    (tmp_path / "base.yaml").write_text("defaults: r.yaml\n")
    with pytest.raises(ConfigError, match="circle"):
        load_recipe(tmp_path / "r.yaml")


@pytest.mark.parametrize("override", ["runner", "=3", "runner.=3", "runner.mode.deeper=3"])
def test_a_malformed_override_is_refused(override: str) -> None:
    with pytest.raises(ConfigError):
        load_recipe(QUICKSTART, [override])


@pytest.mark.parametrize(
    ("override", "key"),
    [
        ("algorithm.gama=.9", "algorithm.gama"),
        ("algorithm.learning-rate=1", "algorithm.learning-rate"),
        ("gamma=.9", "gamma"),
        ("runner.absent=1", "runner.absent"),
        ("algorithm.loss=pppo", "algorithm.loss"),
        ("env.num_envs=0", "env.num_envs"),
    ],
)
def test_case_j1_the_quickstart_refuses_before_any_work(override: str, key: str) -> None:
    with pytest.raises(ConfigError) as refused:
        build(EmbodiedRecipe, load_recipe(QUICKSTART, [override]))
    assert refused.value.key == key


def test_a_recipe_that_is_not_there_names_those_that_are() -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'quickstart\.yaml'"):
        load_recipe(QUICKSTART.with_name("quikstart.yaml"))


@pytest.mark.parametrize("name", sorted(path.name for path in QUICKSTART.parent.iterdir() if path.is_file()))
def test_every_recipe_is_valid_and_survives_its_yaml(tmp_path: Path, name: str) -> None:
    recipe = build(EmbodiedRecipe, load_recipe(QUICKSTART.with_name(name)))
    save_yaml(recipe, tmp_path / "saved.yaml")
    assert build(EmbodiedRecipe, load_recipe(tmp_path / "saved.yaml")) == recipe


plain = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(allow_nan=False, allow_infinity=False), st.text()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(min_size=1), inner, max_size=3)),
    max_leaves=6,
)


@given(st.dictionaries(st.text(min_size=1).filter(lambda key: key != "defaults"), plain, max_size=4))
def test_any_plain_data_survive_yaml(tmp_path_factory: pytest.TempPathFactory, data: dict[str, Any]) -> None:
    if "${" in str(data):
        return
    path = tmp_path_factory.mktemp("yaml") / "data.yaml"
    save_yaml(data, path)
    assert load_recipe(path) == data


@given(
    st.builds(
        Inner, gamma=st.floats(0, 1), steps=st.integers(), sizes=st.lists(st.integers()).map(tuple), note=st.text()
    )
)
def test_a_configuration_survives_plain_data(config: Inner) -> None:
    assert build(Inner, to_dict(config)) == config


def test_a_registry_names_what_it_has_and_imports_what_it_is_told() -> None:
    registry: Registry[Any] = Registry("thing")
    registry.register("alpha")(dict)
    assert registry.get("alpha") is dict
    assert registry.get("collections:OrderedDict").__name__ == "OrderedDict"
    assert "alpha" in registry
    assert registry.names() == ["alpha"]
    with pytest.raises(ConfigError, match="did you mean 'alpha'"):
        registry.get("alfa", key="env.id")
    with pytest.raises(ConfigError, match="cannot be imported"):
        registry.get("collections:Nothing")
    with pytest.raises(ConfigError, match="registered already"):
        registry.register("alpha")(list)


def test_a_recipe_may_be_python(tmp_path: Path) -> None:
    path = tmp_path / "r.py"
    path.write_text("steps = 3\nrecipe = {'name': 'n', 'inner': {'steps': steps}}\n")
    assert build(Outer, load_recipe(path, ["inner.gamma=0.5"])) == Outer(name="n", inner=Inner(steps=3, gamma=0.5))
    path.write_text("recipes = {}\n")
    with pytest.raises(ConfigError, match="defines no variable"):
        load_recipe(path)
    path.write_text("open('no-such-file')\n")
    with pytest.raises(FileNotFoundError):  # its own fault, not "the recipe cannot be read"
        load_recipe(path)
