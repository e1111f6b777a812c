from __future__ import annotations

from pathlib import Path

import pytest
import torch

from composer_replication.trainer.checkpoint import begin_checkpoint, last_complete_checkpoint, load_state, save_state


def test_state_comes_back_bit_for_bit(tmp_path: Path) -> None:
    tensors = {"a": torch.randn(3, 4), "b": torch.randn(4, 2).T, "c": torch.tensor(3)}
    save_state(tmp_path / "checkpoint-1", tensors, {"t": 0.1, "rows": [[{"x": 1}], []]})
    loaded, numbers = load_state(tmp_path / "checkpoint-1")
    assert numbers == {"t": 0.1, "rows": [[{"x": 1}], []]}
    assert all(torch.equal(loaded[name], tensor) for name, tensor in tensors.items())


def test_half_written_checkpoints_are_passed_over(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    assert last_complete_checkpoint(tmp_path / "missing") is None
    for step in (2, 10, 9, 11):
        save_state(tmp_path / f"checkpoint-{step}", {}, {})
        (tmp_path / f"checkpoint-{step}" / "trainer_state.json").write_text('{"global_step": 1}', encoding="utf-8")
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-11"
    (tmp_path / "checkpoint-11" / "trainer_state.json").write_text('{"global_st', encoding="utf-8")
    (tmp_path / "checkpoint-10" / "channels-0.json").unlink()
    assert last_complete_checkpoint(tmp_path) == tmp_path / "checkpoint-9"
    assert "checkpoint-10 was not saved to its end" in caplog.text
    assert last_complete_checkpoint(tmp_path, processes=2) is None


def test_a_checkpoint_that_is_written_again_is_incomplete_meanwhile(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-3"
    begin_checkpoint(folder)  # nothing there yet
    save_state(folder, {}, {})
    (folder / "trainer_state.json").write_text("{}", encoding="utf-8")
    begin_checkpoint(folder)
    assert last_complete_checkpoint(tmp_path) is None


def test_what_cannot_be_trusted_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint-1"
    with pytest.raises(ValueError, match=r"channels-0\.json"):
        load_state(folder)
    save_state(folder, {"a": torch.zeros(2)}, {})
    tensor_file = folder / "channels-0.safetensors"
    damaged = bytearray(tensor_file.read_bytes())
    damaged[-1] ^= 1
    tensor_file.write_bytes(damaged)
    with pytest.raises(ValueError, match="checksum"):
        load_state(folder)
    (folder / "channels-0.json").write_text("{", encoding="utf-8")
    with pytest.raises(ValueError, match="cannot be read"):
        load_state(folder)
