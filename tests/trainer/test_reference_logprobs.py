"""Reference log-probabilities: right per pair, computed once per model and pairs, never read from a damaged file; and
the reference policy: adapters off and back as they were, a fingerprint of every weight and no adapter."""

from __future__ import annotations

import logging
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PromptTuningConfig, get_peft_model
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from composer_replication._tiny import tiny_model
from composer_replication.trainer.preference_rows import PreferenceRow
from composer_replication.trainer.reference_logprobs import (
    _read,
    acts_as_reference,
    model_fingerprint,
    reference_logprobs,
    reference_policy,
)

PAD = 0


def policy(seed: int = 2) -> Any:
    return tiny_model("llama", vocab_size=40, hidden_size=16, layers=1, heads=2, seed=seed)


def rows() -> list[PreferenceRow]:
    """Of very different lengths, in no order."""
    return [
        PreferenceRow([(7 * n + k) % 40 for k in range(3 + n * 5 % 11)], [n + 1, 9, 3][: 1 + n % 3], [n + 2, 8, n, 4])
        for n in range(7)
    ]


def computed(model: Any, cache_dir: Path | None = None, pairs: list[PreferenceRow] | None = None) -> torch.Tensor:
    return reference_logprobs(
        model, rows() if pairs is None else pairs, pad_token_id=PAD, batch_size=3, cache_dir=cache_dir, device="cpu"
    )


def counted(model: Any) -> list[int]:
    """The batch sizes of the forward passes from here on."""
    passes: list[int] = []
    model.register_forward_pre_hook(lambda _, __, kwargs: passes.append(kwargs["input_ids"].shape[0]), with_kwargs=True)
    return passes


def summed(model: Any, prompt: list[int], response: list[int]) -> float:
    ids = torch.tensor([[*prompt, *response]])
    with torch.no_grad():
        logprobs = model(ids).logits.log_softmax(-1)[0, len(prompt) - 1 : -1]
    return float(logprobs.gather(-1, torch.tensor(response)[:, None]).sum())


def test_values_are_each_pairs_own() -> None:
    model = policy().train()
    values = computed(model)
    assert values.dtype == torch.float32
    assert not values.requires_grad
    assert model.training
    expected = [
        [summed(model, row.prompt_ids, row.chosen_ids), summed(model, row.prompt_ids, row.rejected_ids)]
        for row in rows()
    ]
    torch.testing.assert_close(values, torch.tensor(expected), rtol=1e-5, atol=1e-4)


def test_rows_of_like_length_share_a_batch() -> None:
    model = policy()
    widths: list[int] = []
    model.register_forward_pre_hook(lambda _, __, kwargs: widths.append(kwargs["input_ids"].shape[1]), with_kwargs=True)
    computed(model)
    assert len(widths) == 3
    assert widths == sorted(widths, reverse=True)


def test_dropout_is_off_and_comes_back() -> None:
    model = policy().train()
    model.model.layers[0].self_attn.attention_dropout = 0.5
    assert torch.equal(computed(model), computed(model))
    assert all(module.training for module in model.modules())


def test_the_second_time_no_pass_is_made(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    first = computed(policy(), tmp_path / "new" / "cache")
    model = policy()
    passes = counted(model)
    with caplog.at_level(logging.INFO):
        assert torch.equal(computed(model, tmp_path / "new" / "cache"), first)
    assert passes == []
    assert "7 pairs: read from" in caplog.text
    (file,) = (tmp_path / "new" / "cache").iterdir()
    assert file.suffix == ".safetensors"


def test_another_model_or_other_pairs_miss(tmp_path: Path) -> None:
    first = computed(policy(), tmp_path)
    model = policy()
    with torch.no_grad():
        model.model.norm.weight[0] += 1e-3
    passes = counted(model)
    assert not torch.equal(computed(model, tmp_path), first)
    assert len(passes) == 3
    changed = rows()
    changed[3].chosen_ids[0] += 1
    for pairs in (changed, rows()[::-1], rows()[:6]):
        model = policy()
        passes = counted(model)
        computed(model, tmp_path, pairs)
        assert passes
    assert len(list(tmp_path.iterdir())) == 5


def _foreign(file: Path) -> None:
    """Sound values, but of another model."""
    computed(policy(seed=3), file.parent / "other")
    next((file.parent / "other").iterdir()).replace(file)
    (file.parent / "other").rmdir()


def _flat(file: Path) -> None:
    with safe_open(file, framework="pt") as opened:
        metadata = opened.metadata()
    save_file({"logprobs": load_file(file)["logprobs"].flatten()}, file, metadata=metadata)


HARMS: dict[str, Callable[[Path], object]] = {
    "cut": lambda file: file.write_bytes(file.read_bytes()[:-5]),
    "flipped": lambda file: file.write_bytes(file.read_bytes()[:-1] + bytes([file.read_bytes()[-1] ^ 1])),
    "foreign": _foreign,
    "garbage": lambda file: file.write_bytes(b"\x80\x04}."),
    "empty": lambda file: file.write_bytes(b""),
    "shape": _flat,
    "no_metadata": lambda file: save_file(load_file(file), file),
}


@pytest.mark.parametrize("harm", HARMS)
def test_a_file_that_cannot_be_trusted_is_computed_again(
    harm: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    expected = computed(policy(), tmp_path)
    (file,) = tmp_path.iterdir()
    HARMS[harm](file)
    with caplog.at_level(logging.WARNING):
        assert torch.equal(computed(policy(), tmp_path), expected)
    assert "computed again" in caplog.text
    passes = counted(model := policy())
    assert torch.equal(computed(model, tmp_path), expected)
    assert passes == []


# A model of torch alone: what has to be imported is little, and both processes are at it together.
TWO_AT_ONCE = """
import sys
from pathlib import Path
from types import SimpleNamespace

import torch

from composer_replication.trainer.preference_rows import PreferenceRow
from composer_replication.trainer.reference_logprobs import reference_logprobs


class Table(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.rows = torch.nn.Parameter(torch.arange(100.0).view(10, 10) % 7)

    def forward(self, input_ids, attention_mask=None):
        return SimpleNamespace(logits=self.rows[input_ids])


model = Table()
rows = [PreferenceRow([1, n % 10], [3, n % 7], [4]) for n in range(2000)]
print("ready", flush=True)
sys.stdin.readline()
values = reference_logprobs(
    model, rows, pad_token_id=0, batch_size=1000, cache_dir=Path(sys.argv[1]), device="cpu"
)
print(values.double().sum().item())
"""


def test_two_processes_at_once_leave_one_whole_file(tmp_path: Path) -> None:
    def start() -> subprocess.Popen[str]:
        command = [sys.executable, "-c", TWO_AT_ONCE, str(tmp_path / "cache")]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    both = [start(), start()]
    for process in both:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in both:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    results = [process.communicate()[0] for process in both]
    assert [process.returncode for process in both] == [0, 0]
    (file,) = (tmp_path / "cache").iterdir()
    with safe_open(file, framework="pt") as opened:
        origin, values = opened.metadata(), opened.get_tensor("logprobs")
    assert file.name.endswith(".safetensors")
    assert torch.equal(_read(file, origin, 2000), values)
    assert [float(total) for total in results] == [float(values.double().sum())] * 2


def test_adapters_must_be_off_and_the_cache_is_that_of_the_base(tmp_path: Path) -> None:
    expected = computed(policy(), tmp_path)
    model = get_peft_model(policy(), LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    with pytest.raises(ValueError, match=r"adapters are on: call reference_logprobs inside `with reference_policy"):
        computed(model, tmp_path)
    passes = counted(model)
    with reference_policy(model) as reference:
        assert torch.equal(computed(reference, tmp_path), expected)
        assert passes == []
        torch.testing.assert_close(computed(reference), expected)


def test_progress_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        computed(policy())
    assert [record.message for record in caplog.records if record.name.endswith("reference_logprobs")] == [
        f"Log-probabilities: {done} of 7 pairs" for done in (3, 6, 7)
    ]


def test_bad_arguments_are_named() -> None:
    with pytest.raises(ValueError, match="rows is empty"):
        computed(policy(), pairs=[])
    with pytest.raises(ValueError, match="batch_size must be at least 1, got 0"):
        reference_logprobs(policy(), rows(), pad_token_id=PAD, batch_size=0, cache_dir=None, device="cpu")


IDS = torch.arange(12).view(2, 6)


def base() -> Any:
    return tiny_model("qwen2", vocab_size=40, hidden_size=16, layers=1, heads=2, seed=2).eval()


def adapted(**settings: Any) -> Any:
    chosen = {"target_modules": ["q_proj", "down_proj"], "modules_to_save": ["lm_head"], "r": 2, **settings}
    model = get_peft_model(base(), LoraConfig(**chosen, init_lora_weights=False)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn_like(parameter))
    return model


def test_a_peft_model_without_its_adapters_and_saved_modules_is_its_base() -> None:
    model = adapted()
    trained = model(IDS).logits
    with torch.no_grad(), reference_policy(model) as policy:
        assert acts_as_reference(model)
        torch.testing.assert_close(policy(IDS).logits, base()(IDS).logits)
    assert not acts_as_reference(model)
    assert torch.equal(model(IDS).logits, trained)


def test_what_was_frozen_stays_frozen_and_what_was_trained_stays_trained() -> None:
    model = adapted()
    frozen = next(name for name, parameter in model.named_parameters() if "lora_A" in name)
    model.get_parameter(frozen).requires_grad_(False)
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    with pytest.raises(KeyError), reference_policy(model):
        raise KeyError
    assert {name: parameter.requires_grad for name, parameter in model.named_parameters()} == before
    assert any(before.values())


def test_virtual_tokens_are_off_too() -> None:
    model = get_peft_model(base(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=3))
    with torch.no_grad(), reference_policy(model) as policy:
        torch.testing.assert_close(policy(IDS).logits, base()(IDS).logits)
    assert model_fingerprint(model) == model_fingerprint(base())


def test_a_plain_model_is_its_own_reference_inside_wrappers() -> None:
    model = base()
    wrapper = torch.nn.Module()
    wrapper.module = model
    with reference_policy(wrapper) as policy:
        assert policy is model
    assert acts_as_reference(wrapper)
    assert model_fingerprint(wrapper) == model_fingerprint(model)


@pytest.mark.parametrize(
    "settings", [{}, {"use_dora": True}, {"trainable_token_indices": [1, 2], "modules_to_save": None}]
)
def test_a_fingerprint_is_that_of_the_base_whatever_the_adapters(settings: dict[str, Any]) -> None:
    model = adapted(**settings)
    assert model_fingerprint(model) == model_fingerprint(base())
    with reference_policy(model):
        assert model_fingerprint(model) == model_fingerprint(base())
    with torch.no_grad():
        model.get_parameter("base_model.model.model.layers.0.self_attn.q_proj.base_layer.weight")[0, 0] += 1e-6
    assert model_fingerprint(model) != model_fingerprint(base())


def test_a_fingerprint_sees_any_one_weight() -> None:
    model = base()
    seen = {model_fingerprint(model)}
    for count, parameter in enumerate(model.parameters(), start=1):
        flat = parameter.data.view(-1)
        place = count * 7 % flat.numel()
        flat[place] = torch.nextafter(flat[place], torch.tensor(9.0))
        seen.add(model_fingerprint(model))
        assert len(seen) == count + 1


def test_a_fingerprint_sees_swaps_across_any_distance() -> None:
    layer = torch.nn.Linear(1 << 12, (1 << 10) + 1, bias=False).to(torch.bfloat16)
    flat = layer.weight.data.view(-1)
    for one, other in ((0, 1), (3, (1 << 22) + 3)):
        before = model_fingerprint(layer)
        flat[one], flat[other] = 1.0, 2.0
        set_so = model_fingerprint(layer)
        flat[one], flat[other] = 2.0, 1.0
        assert len({before, set_so, model_fingerprint(layer)}) == 3


def test_a_fingerprint_sees_dtype_shape_and_what_the_config_says_of_the_pass() -> None:
    model = base()
    model.config.rope_parameters["rope_theta"] = 5e5
    idle = base()
    idle.config.use_cache, idle.config.pad_token_id, idle.config._name_or_path = False, 3, "elsewhere"
    assert model_fingerprint(idle) == model_fingerprint(base())
    others = [model_fingerprint(m) for m in (base(), base().to(torch.bfloat16), model)]
    assert len(set(others)) == 3
    flat, square = torch.nn.Linear(4, 1, bias=False), torch.nn.Linear(2, 2, bias=False)
    flat.weight.data.fill_(1.0), square.weight.data.fill_(1.0)
    assert model_fingerprint(flat) != model_fingerprint(square)


def test_a_fingerprint_does_not_depend_on_the_number_of_threads() -> None:
    layer = torch.nn.Linear(1 << 9, 1 << 8)
    alone = model_fingerprint(layer)
    torch.set_num_threads(3)
    try:
        assert model_fingerprint(layer) == alone
    finally:
        torch.set_num_threads(1)


def test_weights_that_are_elsewhere_are_refused() -> None:
    with torch.device("meta"):
        layer = torch.nn.Linear(2, 2)
    with pytest.raises(ValueError, match=r"bias is not here in one piece: .* before it is sharded or offloaded"):
        model_fingerprint(layer)
