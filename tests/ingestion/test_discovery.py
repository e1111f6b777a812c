"""Which files a user means."""

from __future__ import annotations

import logging
import os
import socket
from pathlib import Path

import pytest

from composer_replication.ingestion.log_file import NoSuchPathError, find_files


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name in ("b/2.jsonl", "b/1.jsonl", "a.jsonl", "b/deep/er/3.txt", ".git/x.jsonl", "b/node_modules/y.jsonl"):
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("x")
    (tmp_path / "b" / "__pycache__").mkdir()
    (tmp_path / "b" / "__pycache__" / "z.pyc").write_text("x")
    (tmp_path / "empty").mkdir()
    return tmp_path


def names(folder: Path, found: list[Path]) -> list[str]:
    return [path.relative_to(folder).as_posix() for path in found]


ALL = ["a.jsonl", "b/1.jsonl", "b/2.jsonl", "b/deep/er/3.txt"]


def test_folders_are_searched_to_the_bottom_in_order(tree: Path) -> None:
    assert names(tree, find_files([tree])) == ALL
    assert names(tree, find_files([str(tree)])) == ALL
    assert find_files([tree / "empty"]) == []
    assert find_files([]) == []


def test_files_named_twice_are_found_once(tree: Path) -> None:
    (tree / "c.jsonl").symlink_to(tree / "a.jsonl")
    (tree / "link").symlink_to(tree / "b")
    found = find_files([tree / "b" / "1.jsonl", tree, tree / "b", tree / "b" / ".." / "a.jsonl"])
    assert names(tree, found) == ALL


def test_a_folder_of_ones_own_choice_is_searched_whatever_its_name(tree: Path) -> None:
    assert names(tree, find_files([tree / ".git"])) == [".git/x.jsonl"]


def test_globs(tree: Path) -> None:
    assert names(tree, find_files([tree / "b" / "*.jsonl"])) == ["b/1.jsonl", "b/2.jsonl"]
    assert names(tree, find_files([tree / "**" / "*.txt"])) == ["b/deep/er/3.txt"]
    assert names(tree, find_files([tree / "[b]"])) == ALL[1:]


def test_a_name_that_looks_like_a_glob_is_a_name_first(tree: Path) -> None:
    (tree / "[a].jsonl").write_text("x")
    assert names(tree, find_files([tree / "[a].jsonl"])) == ["[a].jsonl"]


def test_the_home_folder(tree: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tree))
    assert names(tree, find_files(["~/b/1.jsonl"])) == ["b/1.jsonl"]


@pytest.mark.parametrize("missing", ["nothing.jsonl", "nothing/*.jsonl", "*.nothing", "[z]"])
def test_what_is_not_there_raises(tree: Path, missing: str) -> None:
    with pytest.raises(FileNotFoundError, match="there is no such file or folder"):
        find_files([tree, tree / missing])


def test_what_is_left_out(tree: Path) -> None:
    assert names(tree, find_files([tree], leave_out=[tree / "b"])) == ["a.jsonl"]
    assert names(tree, find_files([tree], leave_out=[tree / "b" / "deep", tree / "not there"])) == ALL[:3]
    assert find_files([tree], leave_out=[tree]) == []


def test_loops_of_links_end(tree: Path) -> None:
    (tree / "b" / "up").symlink_to(tree)
    (tree / "b" / "self").symlink_to(tree / "b" / "self")
    (tree / "b" / "deep" / "there").symlink_to(tree / "empty")
    (tree / "empty" / "back").symlink_to(tree / "b" / "deep")
    assert names(tree, find_files([tree])) == ALL
    with pytest.raises(NoSuchPathError, match="the link is broken"):
        find_files([tree / "b" / "self"])


def test_linked_folders_are_entered(tree: Path) -> None:
    (tree / "empty" / "link").symlink_to(tree / "b" / "deep")
    assert names(tree, find_files([tree / "empty"])) == ["empty/link/er/3.txt"]


def test_only_files_with_bytes_in_them(tree: Path) -> None:
    os.mkfifo(tree / "pipe.jsonl")
    (tree / "device.jsonl").symlink_to("/dev/zero")
    (tree / "nowhere.jsonl").symlink_to(tree / "gone")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind(os.path.relpath(tree / "socket"))  # a short name: those of sockets are limited
        assert names(tree, find_files([tree])) == ALL
    for name in ("pipe.jsonl", "device.jsonl", "nowhere.jsonl"):
        with pytest.raises(NoSuchPathError, match=name):
            find_files([tree / name])


def test_names_that_are_no_text(tree: Path) -> None:
    (tree / os.fsdecode(b"\xff.jsonl")).write_text("x")
    assert len(find_files([tree])) == len(ALL) + 1


def test_a_folder_that_may_not_be_read_is_warned_about(
    tree: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    scandir = os.scandir

    def forbidding(path: str) -> object:  # the tests may run as root, who may read everything
        if str(path).endswith("deep"):
            raise PermissionError(13, "Permission denied", path)
        return scandir(path)

    monkeypatch.setattr(os, "scandir", forbidding)
    with caplog.at_level(logging.WARNING):
        assert names(tree, find_files([tree])) == ALL[:3]
    assert "deep cannot be searched: Permission denied" in caplog.text
