"""`composer-replication diloco run`: real replicas, one that is killed, one that cannot start, Ctrl-C."""

from __future__ import annotations

import hashlib
import io
import json
import math
import os
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml
from processes import start, wait_for
from rich.console import Console
from run.training_material import json_lines, logs_config, pair
from safetensors.torch import load_file

from composer_replication.cli import app as cli
from composer_replication.cli.diloco import _table
from composer_replication.diloco.supervisor import Supervisor


def written(folder: Path, *, lora: bool = True, steps: int = 4, **diloco: Any) -> Path:
    given = logs_config(folder, steps=steps, save_every=2)
    json_lines(folder / "pairs.jsonl", *(pair(number) for number in range(4)))
    given["model"]["lora"] = {"r": 2} if lora else None
    given["diloco"] = {"sync_every": 2, **diloco}
    file = folder / "config.yaml"
    file.write_text(yaml.safe_dump(given), encoding="utf-8")
    return file


def hashes(summary: dict[str, Any], name: str) -> set[str]:
    """Of the final model of each replica."""
    return {hashlib.sha256(Path(one["checkpoint"], name).read_bytes()).hexdigest() for one in summary["replicas"]}


def rounds(folder: Path, rank: int) -> list[dict[str, Any]]:
    file = folder / "run" / f"replica-{rank}" / "rounds.jsonl"
    lines = file.read_text().splitlines(keepends=True) if file.exists() else []
    return [json.loads(line) for line in lines if line.endswith("\n")]


@contextmanager
def running(*arguments: object, **more: str) -> Iterator[Any]:
    """The command in a process of its own, whose end ends its replicas, too."""
    process = start("diloco", "run", *arguments, **more)
    try:
        yield process
    finally:
        if process.poll() is None:
            process.send_signal(signal.SIGTERM)
            process.communicate()


def replica_pids(supervisor: int) -> dict[int, int]:
    """The replicas of a command that is running, by rank."""
    found = {}
    for task in Path(f"/proc/{supervisor}/task").iterdir():
        for pid in map(int, (task / "children").read_text().split()):
            variables = dict(
                one.split(b"=", 1) for one in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0") if b"=" in one
            )
            if b"REPLICA_RANK" in variables:
                found[int(variables[b"REPLICA_RANK"])] = pid
    return found


def test_two_replicas_end_with_the_same_adapters(tmp_path: Path) -> None:
    process = start("diloco", "run", written(tmp_path), "--replicas", 2, "--json", OMP_NUM_THREADS="1")
    out, err = process.communicate()
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert (summary["identical"], summary["rounds"], summary["restarts"]) == (True, 2, 0)
    assert [(one["state"], one["step"], one["participants"]) for one in summary["replicas"]] == [("done", 4, 2)] * 2
    assert len(hashes(summary, "adapter_model.safetensors")) == 1
    first, second = rounds(tmp_path, 0), rounds(tmp_path, 1)
    assert [line["digest"] for line in first] == [line["digest"] for line in second]
    assert not any(line["healed"] for line in first + second)  # they began equal
    assert first[0]["loss"] != second[0]["loss"]  # on other data
    # A ring all-reduce of two sends what there is once: the adapters, and nothing else.
    adapters = load_file(Path(summary["replicas"][0]["checkpoint"], "adapter_model.safetensors"))
    assert first[0]["bytes_up"] == sum(tensor.nbytes for tensor in adapters.values())


@pytest.mark.parametrize("backend", ["torchft", "store"])
def test_a_replica_that_is_killed_comes_back_and_ends_like_the_others(tmp_path: Path, backend: str) -> None:
    file = written(tmp_path, lora=False, steps=12, backend=backend, replicas=2)
    with running(file, OMP_NUM_THREADS="1") as process:
        wait_for(lambda: process.poll() is not None or len(rounds(tmp_path, 1)) >= 2)
        os.kill(replica_pids(process.pid)[1], signal.SIGKILL)
        _, err = process.communicate()
    assert process.returncode == 0, err
    assert "replica 1 was killed by SIGKILL" in err
    assert "started again (1 of 3)" in err
    folders = [tmp_path / "run" / f"replica-{rank}" / "checkpoint-12" for rank in (0, 1)]
    models = [load_file(folder / "model.safetensors") for folder in folders]
    assert all(models[0][name].equal(models[1][name]) for name in models[0])
    last = [rounds(tmp_path, rank)[-1] for rank in (0, 1)]
    assert last[0]["digest"] == last[1]["digest"]
    assert [one["step"] for one in last] == [12, 12]


def test_the_same_command_resumes(tmp_path: Path) -> None:
    file = written(tmp_path, backend="store", replicas=2)
    for steps, resumed in ((2, 0), (4, 2)):
        process = start("diloco", "run", file, "--json", "--set", f"training.steps={steps}", OMP_NUM_THREADS="1")
        out, err = process.communicate()
        assert process.returncode == 0, err
        log = (tmp_path / "run" / "replica-0" / "replica.log").read_text()
        assert f'"resumed_from_step": {resumed}' in log
    summary = json.loads(out)
    assert summary["identical"]
    assert len(hashes(summary, "adapter_model.safetensors")) == 1
    assert [line["step"] for line in rounds(tmp_path, 0)] == [2, 4]
    whole = tmp_path / "whole"
    whole.mkdir()
    process = start(
        "diloco", "run", file, "--json", "--set", f"training.output_dir={whole}", "--replicas", 2, OMP_NUM_THREADS="1"
    )
    out, err = process.communicate()
    assert process.returncode == 0, err
    assert hashes(json.loads(out), "adapter_model.safetensors") == hashes(summary, "adapter_model.safetensors")


@pytest.mark.parametrize("backend", ["torchft", "store"])
def test_a_replica_that_was_killed_before_its_end_heals_from_one_that_has_finished(
    tmp_path: Path, backend: str
) -> None:
    file = written(tmp_path, backend=backend, replicas=2)
    for resumed in (0, 4):
        process = start("diloco", "run", file, "--json", OMP_NUM_THREADS="1")
        out, err = process.communicate()
        assert process.returncode == 0, err
        log = (tmp_path / "run" / "replica-0" / "replica.log").read_text()
        assert f'"resumed_from_step": {resumed}' in log
        summary = json.loads(out)
        assert len(hashes(summary, "adapter_model.safetensors")) == 1
        last = Path(summary["replicas"][1]["checkpoint"])
        assert last.name == "checkpoint-4"
        shutil.rmtree(last)


@pytest.fixture
def _hangup_by_default() -> Iterator[None]:
    """Under nohup SIGHUP is ignored, and children would inherit that."""
    before = signal.signal(signal.SIGHUP, signal.SIG_DFL)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("_hangup_by_default")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGHUP])
def test_ctrl_c_ends_all_replicas(tmp_path: Path, number: int) -> None:
    file = written(tmp_path, steps=2000, replicas=2)
    with running(file, "--json", OMP_NUM_THREADS="1") as process:
        wait_for(lambda: process.poll() is not None or len(rounds(tmp_path, 1)) >= 1)
        pids = replica_pids(process.pid)
        process.send_signal(number)
        out, _ = process.communicate()
    assert process.returncode == 130
    assert json.loads(out)["interrupted"]
    assert len(pids) == 2
    assert not any(Path(f"/proc/{pid}").exists() for pid in pids.values())


def is_gone(pid: int) -> bool:
    """Whether a process has ended; nobody may have asked for its exit code."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] in "ZX"
    except (FileNotFoundError, ProcessLookupError):
        return True


def test_replicas_end_with_a_supervisor_that_is_killed(tmp_path: Path) -> None:
    file = written(tmp_path, steps=20_000, backend="store", replicas=2)
    with running(file, OMP_NUM_THREADS="1") as process:
        wait_for(lambda: len(replica_pids(process.pid)) == 2)
        pids = replica_pids(process.pid)
        process.kill()
    try:
        wait_for(lambda: all(map(is_gone, pids.values())))
        for rank in pids:
            log = (tmp_path / "run" / f"replica-{rank}" / "replica.log").read_text()
            assert log.endswith("error: `diloco run` has ended, and this replica with it\n")
    finally:
        for pid in pids.values():
            if not is_gone(pid):
                os.kill(pid, signal.SIGKILL)


def test_a_replica_that_cannot_start_ends_the_run_with_its_words(tmp_path: Path) -> None:
    file = written(tmp_path, replicas=2)
    process = start("diloco", "run", file, "--set", "data.traces=nowhere", OMP_NUM_THREADS="1")
    _, err = process.communicate()
    assert process.returncode == 1
    assert "ended with exit code 1; it said: error: data.traces: " in err
    assert "not started again, as it made no round" in err


def test_bad_settings_are_one_line_each(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = written(tmp_path)
    for arguments, code, line in (
        (["--set", "diloco.sync_every=3"], 2, "training.steps: 4 is not a multiple of diloco.sync_every (3)"),
        (["--replicas", "2", "--set", "diloco.min_replicas=3"], 2, "diloco.min_replicas: 3 is more than the 2"),
        (["--set", "diloco=null"], 2, "has no section diloco: give --replicas N"),
        (["--replicas", "0"], 2, "--replicas"),
    ):
        capsys.readouterr()
        assert cli.run(["diloco", "run", str(file), *arguments]) == code
        (said,) = capsys.readouterr().err.splitlines()
        assert line in said
    assert not (tmp_path / "run").exists()
    assert cli.run(["diloco", "run", str(tmp_path / "missing.yaml")]) == 2


def test_the_table_of_a_long_run_is_readable_at_80_columns() -> None:
    long = {"rounds": 1234, "step": 123_400, "loss": 12.3456, "participants": 16, "seconds_waited": 12_345.6}
    long |= {"bytes_up": 1_234_567_800_000, "bytes_down": 2_345_678_900_000, "restarts": 12}
    short = {"rounds": 3, "step": 6, "loss": None, "participants": 2, "seconds_waited": 0.1}
    short |= {"bytes_up": 120_000, "bytes_down": 0, "restarts": 0}
    console = Console(width=80, file=io.StringIO())
    console.print(
        _table({"replicas": [{"rank": 15, "state": "running", **long}, {"rank": 3, "state": "done", **short}]})
    )
    headings, _, first, second = (
        " ".join(line.split()) for line in console.file.getvalue().splitlines() if line.strip()
    )
    assert headings == "rank state rounds step loss with MB up MB down wait, s restarts"
    assert first == "15 running 1,234 123,400 12.3456 16 1,234,568 2,345,679 12,345.6 12"
    assert second == "3 done 3 6 2 0.12 0.00 0.1 0"


class _Recorded(Supervisor):
    """Replicas that are shell-like processes: each runs a line of Python."""

    programs: dict[int, str]

    def _start(self, rank: int, folder: Path) -> Any:
        import subprocess

        with (folder / "replica.log").open("ab") as log:
            return subprocess.Popen(
                [sys.executable, "-S", "-c", self.programs[rank]], cwd=folder, stdout=log, stderr=log
            )


def supervised(folder: Path, programs: list[str], **settings: Any) -> _Recorded:
    _Recorded.programs = dict(enumerate(programs))
    given = {"wanted": len(programs), "max_restarts": 1, "environment": {}, **settings}
    with _Recorded([], folder, len(programs), **given) as made:
        wait_for(lambda: made.look() or made.is_over)
    return made


def a_round(number: int, digest: str, *, committed: bool = True) -> str:
    line = {"round": number, "digest": digest, "committed": committed, "loss": 1.0, "step": 2 * number + 2}
    figures = {"healed": False, "participants": 2, "bytes_up": 3, "bytes_down": 4, "seconds_waited": 0.5}
    return f"open('rounds.jsonl', 'a').write({json.dumps({**line, **figures})!r} + '\\n')"


WAITS_FOR_OTHERS = "open('at_sync', 'w').close(); import time; time.sleep(600)"


def test_replicas_that_differ_are_named(tmp_path: Path) -> None:
    same = a_round(0, "aa")
    made = supervised(tmp_path, [f"{same}; {a_round(1, 'bb')}", f"{same}; {a_round(1, 'cc')}", same])
    assert made.messages == ["round 1: the replicas 0 and 1 differ"]
    assert (made.is_identical, made.is_good) == (False, False)
    summary = made.summary()
    assert (summary["rounds"], summary["identical"]) == (2, False)
    assert summary["replicas"][0] | {"log": ""} == {
        "rank": 0,
        "state": "done",
        "rounds": 2,
        "step": 4,
        "loss": 1.0,
        "participants": 2,
        "bytes_up": 6,
        "bytes_down": 8,
        "seconds_waited": 1.0,
        "healed": 0,
        "restarts": 0,
        "exit_code": 0,
        "digest": "bb",
        "log": "",
    }


def test_a_replica_that_dies_again_and_again_is_given_up(tmp_path: Path) -> None:
    waits = "import time; time.sleep(600)"
    dies = f"{a_round(0, 'aa')}; print('out of memory'); import os; os.abort()"
    made = supervised(tmp_path, [waits, dies])
    assert [one.state for one in made.replicas] == ["stopped", "failed"]
    assert made.replicas[1].restarts == 1
    assert "replica 1 was killed by SIGABRT; it said: " in made.messages[0]
    assert made.messages[0].endswith("started again (1 of 1)")
    assert made.messages[1].endswith("not started again, as it died too often")
    assert made.messages[2] == "1 replicas are left and 2 are needed: ending the rest"
    assert not made.is_good


def test_rounds_of_an_earlier_start_are_not_counted(tmp_path: Path) -> None:
    for rank, digest in enumerate(("old", "older")):
        (tmp_path / f"replica-{rank}").mkdir()
        file = tmp_path / f"replica-{rank}" / "rounds.jsonl"
        file.write_text(json.dumps({"round": 0, "digest": digest, "committed": True}) + "\n")
    made = supervised(tmp_path, [a_round(1, "aa")] * 2)
    assert made.is_good
    assert made.summary()["rounds"] == 1


def test_a_run_without_a_committed_round_is_not_good(tmp_path: Path) -> None:
    failed = a_round(0, "aa", committed=False)
    assert not supervised(tmp_path / "none", [failed] * 2).is_good
    assert supervised(tmp_path / "second", [f"{failed}; {a_round(0, 'bb')}"] * 2).is_good
    # Resumed when it had finished.
    assert supervised(tmp_path / "finished", ["pass"] * 2).is_good


def test_a_replica_that_missed_the_last_round_is_ended_when_the_others_are_done(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.supervisor._WAITING_S", 0.2)
    made = supervised(tmp_path, [f"{a_round(0, 'aa')}; {a_round(1, 'bb')}", f"{a_round(0, 'aa')}; {WAITS_FOR_OTHERS}"])
    assert [one.state for one in made.replicas] == ["done", "stopped"]
    (message,) = made.messages
    assert message == f"replica 1 missed the last round; the others have finished: see {tmp_path / 'replica-0'}"


def test_a_replica_that_waits_for_one_that_had_finished_before_is_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.supervisor._WAITING_S", 0.2)
    made = supervised(tmp_path, ["pass", WAITS_FOR_OTHERS])
    assert [one.state for one in made.replicas] == ["done", "stopped"]
    (message,) = made.messages
    assert message == f"replica 1 missed the last round; the others have finished: see {tmp_path / 'replica-0'}"


def test_a_learner_that_nobody_waits_for_may_miss_the_last_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.supervisor._WAITING_S", 0.2)
    programs = [f"{a_round(0, 'aa')}; {a_round(1, 'bb')}", f"{a_round(0, 'aa')}; {WAITS_FOR_OTHERS}"]
    made = supervised(tmp_path, programs, ends_apart=True)
    assert [one.state for one in made.replicas] == ["done", "stopped"]
    assert made.is_good
    made.replicas[1].state = "failed"
    assert not made.is_good


def test_a_replica_that_is_slow_but_waits_for_nobody_is_not_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.supervisor._WAITING_S", 0.0)
    slow = "import os, time\nwhile not os.path.exists('go_on'):\n    time.sleep(0.01)"
    _Recorded.programs = {0: a_round(0, "aa"), 1: slow}
    with _Recorded([], tmp_path, 2, wanted=2, max_restarts=0, environment={}) as made:
        made.replicas[0].process.wait()
        for _ in range(3):  # it is seen as behind, then for how long, and then it would be ended
            made.look()
        (tmp_path / "replica-1" / "go_on").touch()
        wait_for(lambda: made.look() or made.is_over)
    assert made.is_good
    assert made.messages == []


@pytest.mark.parametrize(("averaging", "wanted", "apart"), [("mean", 3, False), ("decoupled", 2, True)])
def test_more_than_half_of_decoupled_learners_are_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, averaging: str, wanted: int, apart: bool
) -> None:
    given: dict[str, Any] = {}

    def started(*_: Any, **settings: Any) -> Supervisor:
        given.update(settings)
        raise ValueError("that is all")

    monkeypatch.setattr("composer_replication.diloco.supervisor.Supervisor", started)
    file = written(tmp_path, backend="store", averaging=averaging, replicas=3)
    assert cli.run(["diloco", "run", str(file)]) == 1
    assert (given["wanted"], given["ends_apart"]) == (wanted, apart)


def test_the_lighthouse_waits_for_slow_replicas_as_long_as_they_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    given: list[Any] = []

    def started(*arguments: Any, **settings: Any) -> Any:
        given.extend((*arguments, settings))
        raise ValueError("that is all")

    monkeypatch.setattr("composer_replication.diloco.torchft_replica.Lighthouse", started)
    assert cli.run(["diloco", "run", str(written(tmp_path, replicas=3, min_replicas=2, timeout_s=1234.0))]) == 1
    assert given == [2, {"join_timeout_s": 1234.0}]


def test_what_a_start_leaves_in_its_own_store_is_deleted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = tmp_path / "run" / "store"

    def started(arguments: list[str], *_: Any, **__: Any) -> Supervisor:
        (name,) = (one.partition("=")[2] for one in arguments if one.startswith("diloco.run_id="))
        for run_id in (name, "another"):
            (store / run_id).mkdir(parents=True)
            (store / run_id / "opened").touch()
        raise ValueError("that is all")

    monkeypatch.setattr("composer_replication.diloco.supervisor.Supervisor", started)
    assert cli.run(["diloco", "run", str(written(tmp_path, backend="store"))]) == 1
    assert [folder.name for folder in store.iterdir()] == ["another"]


def test_the_last_replica_is_not_waited_for_if_it_waits_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("composer_replication.diloco.supervisor._WAITING_S", 0.2)
    monkeypatch.setattr("composer_replication.diloco.supervisor._ENDING_S", math.inf)
    deaf = "import signal; signal.signal(signal.SIGINT, signal.SIG_IGN)"
    _Recorded.programs = {0: "pass", 1: f"{deaf}; {WAITS_FOR_OTHERS}"}
    with _Recorded([], tmp_path, 2, wanted=2, max_restarts=0, environment={}) as made:
        made.replicas[0].process.wait()
        wait_for((tmp_path / "replica-1" / "at_sync").exists)
        made.look()
        made.stop()
    assert [one.state for one in made.replicas] == ["done", "stopped"]


def test_what_was_started_is_ended_if_not_all_can_be(tmp_path: Path) -> None:
    (tmp_path / "replica-1").write_text("no folder")
    started: list[Any] = []

    class Noted(_Recorded):
        def _start(self, rank: int, folder: Path) -> Any:
            started.append(super()._start(rank, folder))
            return started[-1]

    Noted.programs = dict.fromkeys((0, 1), "import time; time.sleep(600)")
    with pytest.raises(FileExistsError):
        Noted([], tmp_path, 2, wanted=2, max_restarts=0, environment={})
    assert [process.returncode for process in started] == [-signal.SIGKILL]


@pytest.mark.parametrize(
    ("listed", "own"),
    [("0,1,2", ["0", "1"]), ("3,1", ["3", "1"]), ("GPU-a", ["GPU-a", "GPU-a"]), ("", ["", ""])],
)
def test_each_replica_has_a_device_of_its_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, listed: str, own: list[str]
) -> None:
    """The environments that processes are started with; those would need CUDA."""
    started: list[dict[str, str]] = []

    def popen(*_: Any, env: dict[str, str], **__: Any) -> Any:
        started.append(env)
        return SimpleNamespace(poll=lambda: 0, wait=lambda: 0)

    monkeypatch.setattr("composer_replication.diloco.supervisor.subprocess.Popen", popen)
    with Supervisor([], tmp_path, 2, wanted=2, max_restarts=0, environment={"CUDA_VISIBLE_DEVICES": listed}):
        pass
    assert [(one["REPLICA_RANK"], one["CUDA_VISIBLE_DEVICES"]) for one in started] == list(zip("01", own, strict=True))


def test_replicas_without_a_cuda_device_each_are_refused_or_share(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    environments: list[dict[str, str]] = []

    class Noted(_Recorded):
        programs = dict.fromkeys(range(3), "pass")

        def __init__(self, *arguments: Any, environment: dict[str, str], **more: Any) -> None:
            environments.append(environment)
            super().__init__(*arguments, environment=environment, **more)

    monkeypatch.setattr("composer_replication.diloco.supervisor.Supervisor", Noted)
    monkeypatch.setattr("torch.cuda.device_count", lambda: 2)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    file = written(tmp_path)
    run = ["diloco", "run", str(file), "--set", "training.device=auto"]
    capsys.readouterr()
    assert cli.run([*run, "--replicas", "3"]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert (
        "diloco.replicas: 3 replicas need a CUDA device each with backend torchft (NCCL), and there are 2: use" in said
    )
    assert not environments
    for arguments in (["--replicas", "2"], ["--replicas", "3", "--set", "diloco.backend=store"]):
        assert cli.run([*run, *arguments]) == 0
        assert environments.pop()["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert cli.run([*run, "--replicas", "3", "--set", "training.device=cpu"]) == 0
    assert "CUDA_VISIBLE_DEVICES" not in environments.pop()
    # CUDA sees none of those after the first that does not exist.
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "5,3,-1,0")
    assert cli.run([*run, "--replicas", "2"]) == 0
    assert environments.pop()["CUDA_VISIBLE_DEVICES"] == "5,3"
