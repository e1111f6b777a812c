"""Draws are those of `generate`; a turn ends at an end or its limit, and rows that have ended are not computed."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from packable_models import Passes
from transformers import GenerationConfig

from composer_replication._tiny import tiny_model
from composer_replication.generation.kept_rows import generating, read_prompts
from composer_replication.generation.sampling import Sampling, sample_turn

SETTINGS: list[dict[str, Any]] = [
    {},
    {"temperature": 0.7},
    {"top_k": 5},
    {"top_p": 0.6},
    {"min_p": 0.1},
    {"temperature": 1.3, "top_k": 40, "top_p": 0.9, "min_p": 0.02},
]


@pytest.mark.parametrize("settings", SETTINGS)
def test_tokens_are_drawn_from_the_distribution_of_generate(
    settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[torch.Tensor] = []

    def first(probabilities: torch.Tensor, num_samples: int) -> torch.Tensor:
        seen.append(probabilities)
        return probabilities.argmax(-1, keepdim=True)

    monkeypatch.setattr(torch, "multinomial", first)
    model = tiny_model("qwen2", vocab_size=100).eval()
    prompt = torch.tensor([[5, 6, 7]])
    config = GenerationConfig(do_sample=True, max_new_tokens=1, **{"top_k": 0, **settings})
    output = model.generate(prompt, generation_config=config, return_dict_in_generate=True, output_logits=True)
    token = int(output.sequences[0, -1])
    tokens, logprobs = Sampling(**settings).draw(output.logits[0])
    assert torch.equal(seen[0], seen[1])
    assert tokens == [token]
    assert logprobs == [seen[0][0, token].log().item()]


def test_without_temperature_the_likeliest_token_is_taken() -> None:
    logits = torch.tensor([[0.0, 3.0, 1.0], [2.0, 0.0, 1.0]])
    tokens, logprobs = Sampling(temperature=0).draw(logits)
    assert tokens == [1, 0]
    assert logprobs == pytest.approx(logits.log_softmax(-1).amax(-1).tolist())


@pytest.mark.parametrize("wrong", [{"temperature": -1.0}, {"top_p": 0.0}, {"top_k": -1}, {"min_p": 2.0}])
def test_settings_out_of_range_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=next(iter(wrong))):
        Sampling(**wrong)


class _Script(Sampling):
    """Says what is written, row by row; the rows that are drawn for are those that go on."""

    def __init__(self, lines: list[list[int]]) -> None:
        super().__init__()
        object.__setattr__(self, "lines", [list(line) for line in lines])

    def draw(self, logits_BV: torch.Tensor) -> tuple[list[int], list[float]]:
        going = [line for line in self.lines if line]  # type: ignore[attr-defined]
        assert len(going) == len(logits_BV)
        return [line.pop(0) for line in going], [-float(len(line)) for line in going]


def test_turns_end_at_an_end_or_at_their_limit_and_leave_the_batch() -> None:
    end = 9
    lines = [[1, end], [2] * 7, [3, 3, 3, end], [end], [4] * 3, [5, 5, 5, 5, 5, end]]
    limits = [5, 7, 4, 5, 3, 9]
    model = tiny_model("qwen2", vocab_size=100)
    prompts = [[10 + row] * (3 + row) for row in range(6)]
    passes = Passes(model.get_decoder())
    with generating(model):
        kept, logits = read_prompts(model, prompts)
        said, parts = sample_turn(kept, logits, limits, _Script(lines), {end})
    assert [turn.ids for turn in said] == lines
    assert [len(turn.logprobs) for turn in said] == [len(line) for line in lines]
    # The prompts; then the fourth row ends, which is too little to leave; with the first it is a third of the batch.
    assert [rows for rows, _ in passes.shapes] == [6, 6, 4, 3, 2, 2, 1]
    assert sorted(row for part in parts for row in part.rows) == list(range(6))
    # Every row can go on from where it stands, whatever batch it ended up in.
    for part in parts:
        with generating(model):
            logits = part.kept.read([lines[row][-1:] for row in part.rows])
        for place, row in enumerate(part.rows):
            with torch.no_grad():
                expected = model(torch.tensor([prompts[row] + lines[row]])).logits[0, -1]
            torch.testing.assert_close(logits[place], expected, rtol=1e-4, atol=1e-4)
