"""Names of wheels, and which of them a worker takes."""

from __future__ import annotations

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st
from packaging.tags import Tag, parse_tag, sys_tags
from packaging.version import Version

from pyoco_server.core.wheel import (
    TAGS_MAX,
    WHEEL_NAME_LENGTH_MAX,
    Wheel,
    choose,
    newest_of,
    read_wheel_name,
    read_wheel_tags,
)
from pyoco_server.errors import InvalidWheel

#: What a worker can run, the best first.
SUPPORTED = [
    Tag("cp311", "cp311", "manylinux_2_28_x86_64"),
    Tag("cp311", "cp311", "manylinux_2_17_x86_64"),
    Tag("cp311", "abi3", "linux_x86_64"),
    Tag("py3", "none", "any"),
]


def a_wheel(name: str, *, tags: str = "", modified: float = 1.0) -> Wheel:
    """Without platform in its name: one that fits everywhere."""
    file_name = name if name.endswith(".whl") else f"{name}-py3-none-any.whl"
    return Wheel(
        name=read_wheel_name(file_name),
        size_bytes=1,
        sha256_hex="0" * 64,
        nuid=file_name,
        modified=modified,
        tags=read_wheel_tags(tags),
    )


def chosen(*wheels: Wheel, tags: tuple[str, ...] = ("default",)) -> list[str]:
    return [wheel.name.file_name for wheel in choose(wheels, tags, SUPPORTED).wanted]


@pytest.mark.parametrize(
    ("file_name", "package", "version"),
    [
        ("my_tasks-1.0-py3-none-any.whl", "my-tasks", "1.0"),
        ("My.Tasks-1.0-py3-none-any.whl", "my-tasks", "1.0"),
        ("my_._tasks-1.0.0-py2.py3-none-any.whl", "my-tasks", "1"),
        ("a-1!2.0rc1.post2.dev3+local.7-py3-none-any.whl", "a", "1!2.0rc1.post2.dev3+local.7"),
        ("a-1.0-7beta-cp311-abi3-manylinux_2_17_x86_64.manylinux2014_x86_64.whl", "a", "1.0"),
        ("a-" + "1" * 230 + "-py3-none-any.whl", "a", "1" * 230),
    ],
)
def test_a_name_tells_package_and_version(file_name: str, package: str, version: str) -> None:
    """FLOW-39, FLOW-40"""
    name = read_wheel_name(file_name)
    assert (name.file_name, name.package, name.version) == (file_name, package, Version(version))


def test_a_name_tells_build_and_every_platform() -> None:
    """FLOW-39"""
    name = read_wheel_name("a-1.0-7beta-cp311.cp312-abi3-linux_x86_64.linux_aarch64.whl")
    assert name.build == (7, "beta")
    assert name.platforms == parse_tag("cp311.cp312-abi3-linux_x86_64.linux_aarch64")
    assert read_wheel_name("a-1.0-py3-none-any.whl").build == ()


@pytest.mark.parametrize(
    "file_name",
    [
        "",
        ".whl",
        "a.whl",
        "a-1.0.whl",
        "a-1.0-py3-none-any.WHL",
        "a-1.0-py3-none-any.whl ",
        "a-1.0-py3-none-any.whl\n",
        "a-1.0-py3-none-any.zip",
        "a-1.0-py3-none-any",
        "-1.0-py3-none-any.whl",
        "_-1.0-py3-none-any.whl",
        "a__b-1.0-py3-none-any.whl",
        "a b-1.0-py3-none-any.whl",
        "a- 1.0-py3-none-any.whl",
        "a--py3-none-any.whl",
        "a-one-py3-none-any.whl",
        "a-1..0-py3-none-any.whl",
        "a-1.0-x-py3-none-any.whl",
        "a-1.0--py3-none-any.whl",
        "a-1.0-1-2-py3-none-any.whl",
        "../a-1.0-py3-none-any.whl",
        "dir/a-1.0-py3-none-any.whl",
        "dir\\a-1.0-py3-none-any.whl",
        "a\0-1.0-py3-none-any.whl",
        "ä-1.0-py3-none-any.whl",
        "\ud800-1.0-py3-none-any.whl",
        "a-١.٠-py3-none-any.whl",
        "a" * WHEEL_NAME_LENGTH_MAX + "-1.0-py3-none-any.whl",
    ],
)
def test_any_other_name_is_refused(file_name: str) -> None:
    """FLOW-39, FLOW-156"""
    with pytest.raises(InvalidWheel):
        read_wheel_name(file_name)


def test_a_name_that_spells_very_many_platforms_is_refused_before_they_are_counted_out() -> None:
    many = ".".join(map(str, range(20)))
    with pytest.raises(InvalidWheel, match="platforms"):
        read_wheel_name(f"a-1-{many}-{many}-{many}.whl")


@given(st.text(max_size=30) | st.from_regex(r"[a-z_.-]{0,9}-[0-9a-z.!+]{0,9}-py3-none-any\.whl", fullmatch=True))
def test_whatever_name_it_is_it_is_read_or_refused(file_name: str) -> None:
    """FLOW-39, FLOW-40"""
    try:
        name = read_wheel_name(file_name)
    except InvalidWheel:
        return
    assert name.file_name == file_name
    assert name.package == name.package.lower()
    assert "--" not in name.package
    assert not {"_", "."} & set(name.package)


@pytest.mark.parametrize(
    ("text", "tags"),
    [("", ()), (" , ,", ()), ("a", ("a",)), (" gpu , cpu,gpu ,, cpu", ("gpu", "cpu")), ("x" * 128, ("x" * 128,))],
)
def test_tags_are_trimmed_and_each_counts_once(text: str, tags: tuple[str, ...]) -> None:
    """FLOW-212"""
    assert read_wheel_tags(text) == tags


@pytest.mark.parametrize("text", ["a b", "a.b", "*", "ä", "a;b", "a,b\n\nc", "x" * 129])
def test_a_tag_of_another_form_is_refused(text: str) -> None:
    """FLOW-156"""
    with pytest.raises(InvalidWheel):
        read_wheel_tags(text)


def test_a_wheel_has_so_many_tags_at_most() -> None:
    text = ",".join(f"t{n}" for n in range(TAGS_MAX))
    assert len(read_wheel_tags(text)) == TAGS_MAX
    with pytest.raises(InvalidWheel):
        read_wheel_tags(f"{text},more")


#: Each is older than the next (PEP 440).
ORDER = [
    "0.9",
    "1.0.dev1",
    "1.0a1",
    "1.0b1.dev2",
    "1.0b1",
    "1.0rc1",
    "1.0",
    "1.0+local.1",
    "1.0.post1.dev0",
    "1.0.post1",
]
ORDER += ["1.1", "1.9", "1.10", "2024.1", "1!0.1", "1!1.0", "2!0"]


@pytest.mark.parametrize(("older", "newer"), list(pairwise(ORDER)))
def test_the_newest_is_by_version_and_not_by_text_or_time(older: str, newer: str) -> None:
    """FLOW-213, FLOW-233"""
    old, new = a_wheel(f"a-{older}", modified=9.0), a_wheel(f"a-{newer}", modified=1.0)
    for wheels in ([old, new], [new, old]):
        assert newest_of("a", wheels) == new
        assert chosen(*wheels) == [new.name.file_name]


def test_the_newest_of_a_package_is_looked_for_among_its_own_whatever_their_platform_or_tags() -> None:
    """FLOW-213, FLOW-40"""
    wheels = [a_wheel("My.Tasks-1.0"), a_wheel("my_tasks-1.5-cp39-cp39-win32.whl", tags="gpu"), a_wheel("other-9.0")]
    newest = newest_of("my-tasks", wheels)
    assert newest is not None
    assert newest.name.version == Version("1.5")
    assert newest_of("none", wheels) is None
    assert newest_of("my-tasks", []) is None


@given(st.permutations([a_wheel(f"a-{version}") for version in ORDER]))
def test_the_order_in_which_wheels_are_listed_does_not_matter(wheels: list[Wheel]) -> None:
    """FLOW-213, FLOW-233"""
    newest = newest_of("a", wheels)
    assert newest is not None
    assert newest.name.version == Version(ORDER[-1])
    assert choose(wheels, (), SUPPORTED).wanted == (newest,)


def test_a_worker_takes_what_has_a_tag_of_its_own_or_none() -> None:
    """FLOW-231"""
    wheels = [a_wheel("all-1"), a_wheel("gpu-1", tags="gpu,night"), a_wheel("cpu-1", tags="cpu")]
    assert chosen(*wheels, tags=("gpu", "default")) == ["all-1-py3-none-any.whl", "gpu-1-py3-none-any.whl"]
    assert chosen(*wheels, tags=("cpu",)) == ["all-1-py3-none-any.whl", "cpu-1-py3-none-any.whl"]
    assert chosen(*wheels, tags=()) == ["all-1-py3-none-any.whl"]
    assert choose(wheels, ("default",), SUPPORTED).skipped == ()


def test_what_is_for_another_worker_does_not_hide_an_older_version() -> None:
    """FLOW-231, FLOW-233"""
    assert chosen(a_wheel("a-1"), a_wheel("a-2", tags="gpu")) == ["a-1-py3-none-any.whl"]


def test_what_does_not_fit_is_skipped_and_the_newest_that_fits_is_wanted() -> None:
    """FLOW-232, FLOW-233"""
    odd = a_wheel("a-3-cp39-cp39-win32.whl")
    choice = choose([a_wheel("a-1"), a_wheel("a-2"), odd], ("default",), SUPPORTED)
    assert [wheel.name.file_name for wheel in choice.wanted] == ["a-2-py3-none-any.whl"]
    assert [(skip.wheel_name, "fit" in skip.reason) for skip in choice.skipped] == [(odd.name.file_name, True)]


def test_of_what_does_not_fit_the_newest_version_of_each_package_is_told() -> None:
    """FLOW-243: the older ones are of no interest to anybody"""
    names = [f"{one}-cp39-cp39-win32.whl" for one in ("b-1", "a-2", "a-10", "a-9", "b-0.5")]
    skipped = choose([a_wheel(name) for name in names], ("default",), SUPPORTED).skipped
    assert [skip.wheel_name for skip in skipped] == ["a-10-cp39-cp39-win32.whl", "b-1-cp39-cp39-win32.whl"]


@pytest.mark.parametrize(
    ("better", "worse"),
    [
        ("a-1-cp311-cp311-manylinux_2_17_x86_64.whl", "a-1-py3-none-any.whl"),
        ("a-1-cp311-cp311-manylinux_2_28_x86_64.whl", "a-1-cp311-cp311-manylinux_2_17_x86_64.whl"),
        ("a-1-cp311-abi3-linux_x86_64.macosx_11_0_arm64.whl", "a-1-2-py3-none-any.whl"),
        ("a-1.0-10-py3-none-any.whl", "a-1-9-py3-none-any.whl"),
        ("a-1-1-py3-none-any.whl", "a-1-py3-none-any.whl"),
        ("a-1.1-py3-none-any.whl", "a-1-cp311-cp311-manylinux_2_28_x86_64.whl"),
    ],
)
def test_of_one_version_the_better_fit_is_wanted_then_the_later_build(better: str, worse: str) -> None:
    """FLOW-233"""
    wheels = [a_wheel(better, modified=1.0), a_wheel(worse, modified=2.0)]
    assert chosen(*wheels) == chosen(*reversed(wheels)) == [better]


def test_of_two_that_are_the_same_in_everything_the_later_upload_is_wanted() -> None:
    """FLOW-233"""
    wheels = [a_wheel("a-1.0", modified=1.0), a_wheel("a-1.0.0", modified=2.0)]
    assert chosen(*wheels) == chosen(*reversed(wheels)) == ["a-1.0.0-py3-none-any.whl"]


def test_what_this_python_can_run_is_told_by_the_library_in_order() -> None:
    """FLOW-232: the order that `choose` asks for is the one that `sys_tags` gives."""
    tags = list(sys_tags())
    best = a_wheel(f"a-1-{tags[0]}.whl", modified=1.0)
    assert choose([a_wheel("a-1", modified=2.0), best], (), tags).wanted == (best,)
