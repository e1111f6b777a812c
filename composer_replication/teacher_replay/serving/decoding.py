"""Generation for several prompts at once: the queue that gathers them, the decoding loop, sampling, and the text.

`generate` prepares the inputs and the cache as for any model, and leaves the loop to us: its own would go on computing
rows that are done, at positions that the model may not have.

Shapes: B rows, T columns (prompts are padded on the left), V vocabulary, K rows that go on.
"""

from __future__ import annotations

import copy
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Generic, Protocol, TypeVar

import torch
from transformers.generation.logits_process import TemperatureLogitsWarper, TopKLogitsWarper, TopPLogitsWarper

from composer_replication.teacher_replay.serving.local_teacher import Question
from composer_replication.teacher_replay.serving.tool_call_text import without_beginning

Item = TypeVar("Item")

# Clients that were answered together ask again together. Without this pause, the first of them would be answered alone
# while the others wait, and so on in turns.
_PATIENCE_SECONDS = 0.05
# Below this a temperature would divide the logits to infinity; the highest one wins anyway.
_COLDEST = 1e-5
# Stands for bytes that are not a character, or not yet one.
_BROKEN = "\ufffd"


class BatchQueue(Generic[Item]):
    """Runs batches one after another, in the order of arrival, in a thread that lives while there is work.

    What arrives while a batch runs is the next batch.

    Args:
        run: works on a batch. It must not raise.
        size: the largest batch.
        patience: seconds that the batch after one of several items waits to be full.
    """

    def __init__(self, run: Callable[[list[Item]], None], size: int, patience: float = _PATIENCE_SECONDS) -> None:
        self._run, self._size, self._patience = run, size, patience
        self._changed = threading.Condition()
        self._waiting: list[Item] = []
        self._is_running = False

    def put(self, item: Item) -> None:
        """Add an item; it runs at once if nothing else does."""
        with self._changed:
            self._waiting.append(item)
            self._changed.notify()
            if not self._is_running:
                self._is_running = True
                # Not a daemon: a process that ends in the middle of a computation may crash.
                threading.Thread(target=self._work, name="local-teacher").start()

    def discard(self, item: Item) -> None:
        """Remove an item if it still waits."""
        with self._changed:
            if item in self._waiting:
                self._waiting.remove(item)

    def _work(self) -> None:
        patience = 0.0
        while batch := self._next(patience):
            self._run(batch)
            patience = self._patience if len(batch) > 1 else 0.0

    def _next(self, patience: float) -> list[Item]:
        with self._changed:
            self._changed.wait_for(lambda: len(self._waiting) >= self._size, patience)
            batch = self._waiting[: self._size]
            del self._waiting[: self._size]
            self._is_running = bool(batch)
            return batch


class Row(Protocol):
    """One prompt of a batch.

    `sampling` is from `sampling_of`. `take` gets every token as it is chosen; the row ends when it returns False.
    """

    prompt_ids: list[int]
    sampling: list[Any]

    def take(self, token: int, /) -> bool: ...


def decode(model: Any, rows: Sequence[Row], max_new_tokens: int) -> None:
    """Generate until every row has ended. A row that ends leaves the batch, and its cache is freed.

    Args:
        model: a causal LM in evaluation mode.
        rows: at least one.
        max_new_tokens: at least what the longest row will take.
    """
    width = max(len(row.prompt_ids) for row in rows)
    # A row is padded with its own first token: a repetition penalty must not see another one.
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
    """Select rows of an input: a mask, positions of some axes, or a cache."""
    if isinstance(value, torch.Tensor):
        return value.index_select(-2, index_K) if value.dim() > 1 else value
    if hasattr(value, "reorder_cache"):
        value.reorder_cache(index_K)
    return value


class GumbelNoise:
    """Adds Gumbel noise, which makes the highest score a sample from the softmax.

    The draw has its own random state: a row draws the same whatever rows are beside it, and a training run in the same
    process keeps its random numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, _: Any, scores_1V: torch.Tensor) -> torch.Tensor:
        return scores_1V - torch.empty_like(scores_1V).exponential_(generator=self._generator).log()


def sampling_of(config: Any, question: Question, device: torch.device) -> list[Any]:
    """Return the steps that turn greedy decoding into sampling; none for greedy decoding.

    A temperature, top-p or top-k that the question does not set comes from the model's generation config.
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


class WrittenText:
    """The text of a row so far: whole characters, up to the first stop text.

    `is_stopped` is True after a stop text. Tokens are decoded a few at a time, with some before them: the text of a
    token depends on the one before it, not on all.
    """

    def __init__(self, decode: Callable[[list[int]], str], stops: Sequence[str] = ()) -> None:
        self._decode, self._stops = decode, stops
        self._overlap = max(map(len, stops), default=1) - 1
        self._ids: list[int] = []
        self._shown = 0  # how many of these are in the text
        self.text = ""
        self.is_stopped = False

    def add(self, token: int) -> None:
        """Add the next token."""
        self._ids.append(token)
        self._grow(at_end=False)

    def end(self) -> None:
        """Finish the text: bytes that are not a character are shown as such."""
        self._grow(at_end=True)

    def certain(self) -> str:
        """Return the text without an end that may be the beginning of a stop text."""
        return self.text if self.is_stopped else without_beginning(self.text, self._stops)

    def _grow(self, *, at_end: bool) -> None:
        before, now = self._decode(self._ids[: self._shown]), self._decode(self._ids)
        if self.is_stopped or len(now) <= len(before) or (now.endswith(_BROKEN) and not at_end):
            return
        start = max(0, len(self.text) - self._overlap)
        self.text += now[len(before) :]
        del self._ids[: self._shown]
        self._shown = len(self._ids)
        places = [place for stop in self._stops if (place := self.text.find(stop, start)) >= 0]
        if places:
            self.text, self.is_stopped = self.text[: min(places)], True
