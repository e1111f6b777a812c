"""The section diloco: what is refused, with one line each, and who a process is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from run.training_material import logs_config

from composer_replication.config import Config, parse_config
from composer_replication.diloco.settings import DilocoSection, diloco_problems, replica_rank
from composer_replication.run.folder import first_difference


def config(**diloco: Any) -> Config:
    return Config(
        model={"name": "laboratory"},
        data={"traces": "traces"},
        training={"output_dir": "run", "steps": 100},
        diloco=diloco,
    )


def test_the_defaults_are_those_of_the_literature() -> None:
    made = config().diloco
    assert made is not None
    assert (made.sync_every, made.outer_lr, made.outer_momentum, made.nesterov) == (100, 0.7, 0.9, True)
    assert (made.backend, made.hostname, made.codec, made.wanted) == ("torchft", "127.0.0.1", None, 2)
    assert config(backend="store").diloco.codec == "auto"  # type: ignore[union-attr]
    assert Config(model={"name": "m"}, data={"traces": "t"}, training={"output_dir": "r"}).diloco is None


@pytest.mark.parametrize(
    ("given", "line"),
    [
        ({"sync_every": 30}, "training.steps: 100 is not a multiple of diloco.sync_every (30), so the last 10 steps"),
        ({"sync_every": 200}, "would be lost; use 200"),
        ({"sync_every": 10, "fragments": 3}, "diloco.sync_every: 10 is not a multiple of the 3 diloco.fragments"),
        ({"sync_every": 10, "fragments": 2, "sync_delay": 5}, "diloco.sync_delay: 5 must be below 5"),
        ({"min_replicas": 3}, "diloco.min_replicas: 3 is more than the 2 diloco.replicas"),
        ({"lighthouse": "localhost:1234"}, "diloco.lighthouse: 'localhost:1234' is not of the form http://host:port"),
        ({"lighthouse": "http://localhost"}, "diloco.lighthouse: 'http://localhost' is not of the form"),
        ({"lighthouse": "http://:1234"}, "diloco.lighthouse: 'http://:1234' is not of the form"),
        ({"lighthouse": "http://host:port"}, "diloco.lighthouse: 'http://host:port' is not of the form"),
        ({"lighthouse": "https://host:1234"}, "diloco.lighthouse: 'https://host:1234' is not of the form"),
        ({"codec": "int8"}, "diloco.codec: it has no effect with backend 'torchft'"),
        ({"backend": "store", "lighthouse": "http://h:1"}, "diloco.lighthouse: it has no effect with backend 'store'"),
        ({"outer_momentum": 0.0}, "diloco.nesterov: it looks ahead by the momentum"),
        ({"replicas": 0}, "diloco.replicas"),
        ({"sync_evry": 10}, "diloco.sync_evry"),
    ],
)
def test_a_combination_that_makes_no_sense_is_one_line(given: dict[str, Any], line: str) -> None:
    with pytest.raises(ValueError) as refused:  # noqa: PT011
        config(**given)
    assert line in str(refused.value)


def test_delays_and_minimum_at_their_limits_are_fine() -> None:
    config(sync_every=10, fragments=2, sync_delay=4, min_replicas=2)
    config(outer_momentum=0.0, nesterov=False)
    for address in ("http://localhost:1234", "http://10.0.0.1:29510/", "http://[::1]:29510"):
        config(lighthouse=address)


def test_without_a_minimum_all_replicas_are_wanted_and_of_decoupled_ones_more_than_half() -> None:
    for given, wanted in (({}, 4), ({"min_replicas": 2}, 2)):
        assert DilocoSection(replicas=4, **given).wanted == wanted
    for given, wanted in (({}, 3), ({"min_replicas": 2}, 2), ({"replicas": 5}, 3)):
        section = DilocoSection(**{"replicas": 4, "backend": "store", "averaging": "decoupled", **given})
        assert (section.wanted, section.min_participants) == (wanted, wanted)
    # A store that cannot do without someone is told to wait for all.
    assert DilocoSection(replicas=4, backend="store").min_participants is None


def test_a_replica_is_one_process() -> None:
    (problem,) = diloco_problems(DilocoSection(), 100, 4)
    assert problem.startswith("diloco: a launcher started 4 processes (WORLD_SIZE)")


def test_the_environment_says_which_replica_this_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("REPLICA_RANK", raising=False)
    with pytest.raises(ValueError, match=r"REPLICA_RANK is not set.*diloco run CONFIG.*0 to 2"):
        replica_rank(DilocoSection(replicas=3))
    monkeypatch.setenv("REPLICA_RANK", "2")
    assert replica_rank(DilocoSection(replicas=3)) == 2
    for bad in ("3", "-1", "one"):
        monkeypatch.setenv("REPLICA_RANK", bad)
        with pytest.raises(ValueError, match=f"REPLICA_RANK is '{bad}', and diloco.replicas is 3"):
            replica_rank(DilocoSection(replicas=3))


def test_a_resumed_run_may_meet_elsewhere_but_must_learn_the_same() -> None:
    before = config(backend="store", store="a", run_id="one", grace_s=1.0)
    assert first_difference(before, config(backend="store", store="b", run_id="two", timeout_s=9.0)) is None
    # A machine that does not come back is no reason to begin anew.
    assert first_difference(before, config(backend="store", min_replicas=1)) is None
    difference = first_difference(before, config(backend="store", store="a", sync_every=50))
    assert difference == "diloco.sync_every was 100 and is 50"


def test_each_replica_needs_rows(tmp_path: Path) -> None:
    from composer_replication.diloco.replica import Replica
    from composer_replication.run.data import TrainingData
    from composer_replication.run.replicas import rows_of_replica

    settings = DilocoSection(replicas=2, backend="store", store=str(tmp_path))
    data = TrainingData(traces=list("abcde"), pairs=[], prompts=[{"prompt": str(n)} for n in range(4)])  # type: ignore[arg-type]
    config = parse_config(logs_config(tmp_path, batch_size=8))
    parts = [rows_of_replica(data, Replica(settings, rank, tmp_path), config) for rank in (0, 1)]
    assert [part.traces for part in parts] == [["a", "c", "e"], ["b", "d"]]
    assert [[row["prompt"] for row in part.prompts] for part in parts] == [["0", "2"], ["1", "3"]]
    few = TrainingData(traces=[], pairs=[], prompts=[{"prompt": "0"}])
    with pytest.raises(ValueError, match=r"diloco.replicas: 2 replicas need 2 prompts \(1 each\), and there are 1"):
        rows_of_replica(few, Replica(settings, 0, tmp_path), config)
    # Eight prompts of eight rollouts are a batch of 64: a replica with four would train on nothing.
    config = parse_config(logs_config(tmp_path, batch_size=64))
    with pytest.raises(ValueError, match=r"2 replicas need 16 prompts \(8 each\), and there are 4"):
        rows_of_replica(data, Replica(settings, 0, tmp_path), config)


def test_a_replica_needs_a_place_to_meet(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from composer_replication.diloco.replica import Replica

    monkeypatch.delenv("TORCHFT_LIGHTHOUSE", raising=False)
    with pytest.raises(ValueError, match=r"diloco.lighthouse: it is not set, and neither is TORCHFT_LIGHTHOUSE"):
        Replica(DilocoSection(), 0, tmp_path)
    with pytest.raises(ValueError, match=r"diloco.store: it is not set"):
        Replica(DilocoSection(backend="store"), 0, tmp_path)
