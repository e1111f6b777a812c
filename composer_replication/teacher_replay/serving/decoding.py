"""A decoding loop for several prompts at once, each with its own sampling and its own end.

`generate` prepares the inputs and the cache as for any model, and leaves the loop to us: its own would keep computing
rows that are done, at positions that the model may not have.

Shapes: B rows, T columns (prompts are padded on the left), V vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from composer_replication.teacher_replay.serving.answering import Question

# Below this a temperature would divide the logits to infinity; the highest one wins anyway.
_COLDEST = 1e-5


@dataclass(frozen=True, eq=False)
class Row:
    """One prompt of a batch.

    `sampling` is from `sampling_of`. `take` gets every token as it is chosen; the row ends when it returns False.
    """

    prompt_ids: list[int]
    sampling: Sequence[Callable[[Any, torch.Tensor], torch.Tensor]]
    take: Callable[[int], bool]


def decode(model: Any, rows: Sequence[Row], max_new_tokens: int) -> None:
    """Generate until every row has ended. A row that ends leaves the batch, and its memory is freed.

    Args:
        model: a causal LM in evaluation mode.
        rows: at least one.
        max_new_tokens: at least what the longest row will take.
    """
    width = max(len(row.prompt_ids) for row in rows)
    # A row is padded with its own first token: a penalty on what the prompt repeats must not see another one.
    padded = [row.prompt_ids[:1] * (width - len(row.prompt_ids)) + row.prompt_ids for row in rows]
    mask = [[0] * (width - len(row.prompt_ids)) + [1] * len(row.prompt_ids) for row in rows]
    config = copy.deepcopy(model.generation_config)
    # Rows choose and end their tokens themselves.
    config.update(do_sample=False, temperature=None, top_p=None, top_k=None, num_beams=1, num_return_sequences=1)
    config.update(max_length=None, max_new_tokens=max_new_tokens, min_length=None, min_new_tokens=None)
    if config.pad_token_id is None:
        config.pad_token_id = 0  # never used, but without one `generate` warns every time
    model.generate(
        torch.tensor(padded, device=model.device),
        attention_mask=torch.tensor(mask, device=model.device),
        generation_config=config,
        custom_generate=partial(_loop, list(rows)),
    )


def _loop(
    rows: list[Row],
    model: Any,
    input_ids: torch.Tensor,
    logits_processor: Any,
    stopping_criteria: Any,
    generation_config: Any,
    **inputs: Any,
) -> torch.Tensor:
    ids_BT, is_first = input_ids, True
    while rows:
        new_columns = 1 if inputs.get("use_cache") and not is_first else None
        prepared = model.prepare_inputs_for_generation(
            ids_BT, next_sequence_length=new_columns, is_first_iteration=is_first, **inputs
        )
        output = model(**prepared, return_dict=True)
        inputs = model._update_model_kwargs_for_generation(output, inputs)
        scores_BV = logits_processor(ids_BT, output.logits[:, -1].to(dtype=torch.float32, copy=True))
        del output, prepared  # the next pass needs the memory
        tokens = scores_BV.argmax(-1).tolist()
        for index, row in enumerate(rows):
            if row.sampling:
                score_1V = scores_BV[index : index + 1]
                for step in row.sampling:
                    score_1V = step(None, score_1V)
                tokens[index] = int(score_1V.argmax())
        ids_BT = torch.cat([ids_BT, torch.tensor(tokens, device=ids_BT.device)[:, None]], dim=-1)
        kept = [index for index, (row, token) in enumerate(zip(rows, tokens, strict=True)) if row.take(token)]
        if 0 < len(kept) < len(rows):
            index_K = torch.tensor(kept, device=ids_BT.device)
            ids_BT = ids_BT[index_K]
            inputs = {name: _select(value, index_K) for name, value in inputs.items()}
        rows, is_first = [rows[index] for index in kept], False
    return ids_BT


def _select(value: Any, index_K: torch.Tensor) -> Any:
    """Some rows of an input: a mask, positions of some axes, or a cache."""
    if isinstance(value, torch.Tensor):
        return value.index_select(-2, index_K) if value.dim() > 1 else value
    if hasattr(value, "reorder_cache"):
        value.reorder_cache(index_K)
    return value


class GumbelNoise:
    """Makes the highest score a sample: noise of this kind turns taking the maximum into drawing from the softmax.

    So the draw has a random state of its own: a row draws the same whatever rows are beside it, and a training run in
    the same process keeps its numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, _: Any, scores_1V: torch.Tensor) -> torch.Tensor:
        return scores_1V - torch.empty_like(scores_1V).exponential_(generator=self._generator).log()


def sampling_of(config: Any, question: Question, device: torch.device) -> list[Any]:
    """The steps that make greedy decoding draw; none if it is to stay greedy.

    What the question leaves open comes from the model's generation config: temperature, top-p and top-k.
    """
    default = (config.temperature if config.temperature is not None else 1.0) if config.do_sample else 0.0
    temperature = question.temperature if question.temperature is not None else default
    if temperature < _COLDEST:
        return []
    top_p = question.top_p if question.top_p is not None else config.top_p
    steps: list[Any] = [TemperatureLogitsWarper(float(temperature))]
    if config.top_k:
        steps.append(TopKLogitsWarper(config.top_k))
    if top_p is not None and top_p < 1.0:
        steps.append(TopPLogitsWarper(top_p))
    generator = torch.Generator(device)
    if question.seed is None:
        generator.seed()
    else:
        generator.manual_seed(question.seed)
    return [*steps, GumbelNoise(generator)]
