"""Data-juicer's own engines: the same pairs as in-process, and nothing of them left when they end, however they end."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from processes import wait_for
from replaysim.some_pairs import LONG_ENOUGH, call, pair, recipe_file

from composer_replication.replaysim import DJNormalizer, NormalizedDPOPair, NormalizeReport, engine_process
from composer_replication.replaysim import engines as engines_module
from composer_replication.replaysim.engines import OperatorError

EVERY_KIND_OF_STEP = (
    "whitespace_normalization_mapper: {text_key: chosen}",
    "text_length_filter: {text_key: chosen, min_len: 8, max_len: 32000}",
    "text_length_filter: {text_key: rejected, min_len: 8, max_len: 32000}",
    "words_num_filter: {text_key: chosen, min_num: 2, max_num: 4096}",
    "words_num_filter: {text_key: rejected, min_num: 2, max_num: 4096}",
    "special_characters_filter: {text_key: chosen, max_ratio: 0.95}",
    "special_characters_filter: {text_key: rejected, max_ratio: 0.95}",
    "general_field_filter: {text_key: chosen, filter_condition: \"chosen != 'Forbidden words.'\"}",
    "document_deduplicator: {text_key: pair}",
    "document_deduplicator: {text_key: lesson}",
    "python_lambda_mapper: {text_key: rejected, lambda_str: "
    '\'lambda sample: {**sample, "rejected": sample["rejected"].replace("module", "file")}\'}',
    "document_deduplicator: {text_key: rejected, lowercase: true, ignore_non_character: true}",
)
ODD_TEXTS = (
    "",
    " ",
    "\n\t \u3000",
    "\x00 a zero \x00 byte",
    "half \ud83d a character",
    "\U0001f600 smiles \U0001f468\u200d\U0001f469\u200d\U0001f467",
    "读取失败的测试 然后再修改代码",
    "اقرأ الاختبار الفاشل أولا",
    "e\u0301 combining, \u00e9 not",
    "2026-11-16 10:00:00",
    "null and None",
    '{"a": [1, 2, {"b": "\\u00e9"}]}',
    "a " * 20_000,
    "x" * 3_000_000,
    "a b " + "=" * 300,
    "Forbidden words.",
    "1234567",
    "  a text \u3000 with much\tspace  ",
    "line\r\nends \x85 of \u2028 every kind",
    call("sed -n '1,2p' a"),
    call("SED -n '3,4P' A"),
)


def some_of_everything() -> list[Any]:
    """Two thousand pairs, with every odd text on both sides, early and late copies, and others between them."""
    dice = random.Random(1)
    plain = [
        pair(
            number,
            chosen=f"{LONG_ENOUGH} {dice.random()}",
            rejected=f"Rewrite module {'abcdefgh'[number % 8] * (number // 8)}",
        )
        for number in range(2000)
    ]
    odd = [pair(5000 + number, chosen=text, rejected=f"No. {text}") for number, text in enumerate(ODD_TEXTS)]
    odd += [pair(6000 + number, rejected=text) for number, text in enumerate(ODD_TEXTS)]
    copies = [plain[1], plain[1999], plain[500], odd[5]]
    return [*plain[:700], *odd[:21], *plain[700:1500], *copies, *stuck(), *plain[1500:], *odd[21:], *copies]


def stuck() -> list[Any]:
    """Pairs of a student that does the same again and again."""
    function = {"name": "Bash", "arguments": '{"command": "rm -rf module"}'}
    step: list[Any] = [
        {"role": "assistant", "tool_calls": [{"id": "c", "type": "function", "function": function}]},
        {"role": "tool", "tool_call_id": "c", "content": "No."},
    ]
    return [
        pair(7000 + number, rejected=call("rm -rf module"), state_messages=[{"role": "user"}, *step * number])
        for number in range(30)
    ]


def run(pairs: list[Any], **options: Any) -> tuple[list[NormalizedDPOPair], NormalizeReport]:
    normalizer = DJNormalizer(**options)
    kept = normalizer.normalize(pairs)
    assert normalizer.report is not None
    for one in kept:
        assert one.metadata.pop("executor") == options.get("executor", "batched")
    return kept, replace(normalizer.report, executor=None)


@pytest.fixture(scope="module")
def recipe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return recipe_file(tmp_path_factory.mktemp("recipe"), *EVERY_KIND_OF_STEP)


@pytest.fixture(scope="module")
def in_process(recipe: Path) -> tuple[list[NormalizedDPOPair], NormalizeReport]:
    return run(some_of_everything(), recipe_path=recipe)


def test_the_set_has_work_for_every_step(in_process: tuple[list[NormalizedDPOPair], NormalizeReport]) -> None:
    kept, report = in_process
    assert [one.op for one in report.ops if not one.dropped] == [
        "whitespace_normalization_mapper",
        "python_lambda_mapper",
    ]
    assert {side for one in kept for side in one.metadata.get("changed", ())} == {"chosen", "rejected"}
    assert len(kept) > 1500


@pytest.mark.parametrize("executor", ["data-juicer", "ray"])
def test_an_engine_gives_the_same_pairs_and_leaves_nothing(
    executor: str,
    recipe: Path,
    in_process: tuple[list[NormalizedDPOPair], NormalizeReport],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    home, cwd, work = (tmp_path / name for name in ("home", "cwd", "work"))
    cwd.mkdir()
    monkeypatch.setenv("HOME", str(home))
    monkeypatch.chdir(cwd)
    before = dict(os.environ)
    kept, report = run(some_of_everything(), recipe_path=recipe, executor=executor, work_dir=work, processes=2)
    assert report == in_process[1]
    assert kept == in_process[0]
    assert capfd.readouterr() == ("", "")
    assert (list(cwd.iterdir()), list(work.iterdir()), list(home.rglob("*"))) == ([], [], [])
    assert dict(os.environ) == before
    assert not processes_of(work)


def test_ray_may_be_left_with_nothing(tmp_path: Path) -> None:
    nothing = recipe_file(tmp_path, "text_length_filter: {text_key: chosen, min_len: 500}")
    pairs = [pair(number) for number in range(3)]
    kept, report = run(pairs, recipe_path=nothing, executor="ray", work_dir=tmp_path / "work", processes=2)
    assert kept == []
    assert [one.reason for one in report.dropped] == ["text_length_filter on chosen: text_len 43 < 500"] * 3


def test_an_operator_that_fails_on_an_engine(tmp_path: Path) -> None:
    failing = recipe_file(tmp_path, "python_lambda_mapper: {text_key: chosen, lambda_str: 'lambda sample: 1 / 0'}")
    with pytest.raises(OperatorError) as caught:
        run([pair()], recipe_path=failing, executor="data-juicer", work_dir=tmp_path / "work", processes=1)
    assert str(caught.value) == (
        "executor 'data-juicer' failed: python_lambda_mapper on chosen failed: ZeroDivisionError: division by zero"
    )
    assert list((tmp_path / "work").iterdir()) == []
    assert not processes_of(tmp_path / "work")


def test_the_reason_is_found_in_what_a_worker_tells() -> None:
    told = """ray::MapBatches(process)() (pid=1, ip=127.0.0.1)
      File "x.py", line 3, in process_batched
    RuntimeError: words_num_filter on chosen failed: KeyError: 'a'

    To change retry attempts, configure `ray.data.DataContext`."""
    assert (
        engine_process.one_line(RuntimeError(told)) == "RuntimeError: words_num_filter on chosen failed: KeyError: 'a'"
    )
    assert engine_process.one_line(OSError("no\nroom")) == "OSError: no room"
    assert engine_process.one_line(EOFError()) == "EOFError: "


def test_an_interrupted_run_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []

    class Interrupted(subprocess.Popen[bytes]):
        def wait(self, timeout: float | None = None) -> int:
            if not started:
                started.append(self.pid)
                raise KeyboardInterrupt
            return super().wait(timeout)

    monkeypatch.setattr(engines_module.subprocess, "Popen", Interrupted)
    with pytest.raises(KeyboardInterrupt):
        run([pair()], executor="data-juicer", work_dir=tmp_path)
    assert not psutil.pid_exists(started[0])
    assert list(tmp_path.iterdir()) == []


def test_an_engine_that_dies_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(OperatorError, match="executor 'data-juicer' failed: exit code 1: it wrote nothing"):
        run([pair()], executor="data-juicer", work_dir=tmp_path)


RUN = """
import json, sys
from composer_replication.replaysim import DJNormalizer
pairs = json.loads(sys.stdin.read())
DJNormalizer(executor="data-juicer", work_dir=sys.argv[1]).normalize(pairs * 5000)
"""


def test_an_engine_ends_with_its_parent(tmp_path: Path) -> None:
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", RUN, str(tmp_path)]
    with subprocess.Popen(command, env=environment, stdin=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        parent.stdin.write(json.dumps([pair()]))
        parent.stdin.close()
        # Until the engine has workers of its own.
        while len(processes := psutil.Process(parent.pid).children(recursive=True)) < 3 and parent.poll() is None:
            pass
        parent.send_signal(signal.SIGKILL)
    assert psutil.wait_procs(processes, timeout=600)[1] == []
    wait_for(lambda: not processes_of(tmp_path))
    assert list(tmp_path.iterdir()) == []


def processes_of(folder: Path) -> list[str]:
    """The processes that work in a folder: an engine and all that it starts have it in their environment."""
    found = []
    for process in psutil.process_iter():
        try:
            if str(folder) in process.environ().get("HF_DATASETS_CACHE", ""):
                found.append(" ".join(process.cmdline()))
        except psutil.Error:
            continue
    return found
