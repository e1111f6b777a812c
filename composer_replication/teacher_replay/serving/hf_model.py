"""A Hugging Face causal LM with a chat template, as a teacher."""

from __future__ import annotations

import copy
import threading
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer
from transformers.generation.logits_process import (
    LogitsProcessorList,
    TemperatureLogitsWarper,
    TopKLogitsWarper,
    TopPLogitsWarper,
)
from transformers.generation.stopping_criteria import StoppingCriteriaList

from composer_replication._arguments import check_choice, check_count
from composer_replication.teacher_replay.serving.answering import Answer, Question, QuestionError
from composer_replication.teacher_replay.serving.chat_template import ChatTemplate
from composer_replication.teacher_replay.serving.tool_call_text import MARKERS, read_reply
from composer_replication.teacher_replay.serving.worker_threads import in_thread

MAX_NEW_TOKENS = 1024
DTYPES = ("auto", "float32", "bfloat16", "float16")
# Below this a temperature would divide the logits to infinity; the highest one wins anyway.
_COLDEST = 1e-5


class HuggingFaceTeacher:
    """A teacher that generates with a model, one answer at a time.

    Temperature 0 is greedy decoding; above it, the same seed gives the same answer. What the client leaves open comes
    from the model's generation config. Tool calls are read from the model's text (see `tool_call_text`); its thinking
    becomes the answer's `reasoning`. A prompt that does not fit the model is refused; an answer that would not fit
    ends where the model's positions do.

    Args:
        model: a causal LM; it is put in evaluation mode and stays on its device.
        tokenizer: its tokenizer, with a chat template.
        max_new_tokens: the longest answer; requests may ask for less.

    Raises:
        ValueError: the tokenizer has no chat template, or `max_new_tokens` is not positive.
    """

    def __init__(self, model: Any, tokenizer: Any, *, max_new_tokens: int = MAX_NEW_TOKENS) -> None:
        check_count("max_new_tokens", max_new_tokens)
        self._template = ChatTemplate(tokenizer)
        self._model = model.eval()
        self._tokenizer = tokenizer
        self._max_new_tokens = max_new_tokens
        self._max_positions: int | None = getattr(model.config.get_text_config(), "max_position_embeddings", None)
        self._ends = _ends_of_turn(model, tokenizer)
        self._dropped = {
            number
            for number, token in tokenizer.added_tokens_decoder.items()
            if token.special and token.content not in MARKERS
        }
        # Tokenizers are not made for several threads, and two generations at once would each take twice as long.
        self._turn = threading.Lock()

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_new_tokens: int = MAX_NEW_TOKENS,
    ) -> HuggingFaceTeacher:
        """Load a model and its tokenizer from a folder or the hub; only safetensors, and no code of the model's own.

        Args:
            name_or_path: a folder with a checkpoint, or the model's id on the hub.
            device: where it runs, such as "cuda:1"; "auto" takes CUDA, else MPS, else the CPU.
            dtype: "float32", "bfloat16", "float16", or "auto" for what the checkpoint has.
            max_new_tokens: the longest answer.

        Raises:
            ValueError: it cannot be loaded, or an argument is wrong; the message says which and why, in one line.
        """
        check_choice("dtype", dtype, DTYPES)
        place = choose_device(device)
        precision = "auto" if dtype == "auto" else getattr(torch, dtype)
        folder = Path(name_or_path)
        if folder.is_dir() and not (folder / "config.json").is_file():
            raise ValueError(f"cannot load the model {name_or_path!r}: the folder has no config.json")
        try:
            tokenizer = AutoTokenizer.from_pretrained(name_or_path)
            model = AutoModelForCausalLM.from_pretrained(name_or_path, dtype=precision, use_safetensors=True)
            return cls(model.to(place), tokenizer, max_new_tokens=max_new_tokens)
        except Exception as error:  # a damaged checkpoint may raise anything
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ValueError(f"cannot load the model {name_or_path!r}: {reason}") from error

    async def answer(self, question: Question, /) -> Answer:
        """Generate an answer. Cancelled, the generation ends with the token it is at."""
        cancelled = threading.Event()
        try:
            # Not a daemon: a process that ends in the middle of a computation may crash.
            return await in_thread(partial(self._answer, question, cancelled), daemon=False)
        finally:
            cancelled.set()

    def _answer(self, question: Question, cancelled: threading.Event) -> Answer:
        with self._turn:
            if cancelled.is_set():
                return Answer()
            prompt = self._template.prompt(question.messages, question.tools)
            prompt_ids = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
            room = self._room(len(prompt_ids), question.max_tokens)
            new_ids = self._generate(prompt_ids, room, question, cancelled)
            text = self._text(new_ids)
        ended = bool(new_ids) and new_ids[-1] in self._ends
        stops = [place for stop in question.stop if (place := text.find(stop)) >= 0]
        if stops:
            text = text[: min(stops)]
        turn = read_reply(text, tools=question.tools, is_thinking=prompt.rstrip().endswith("<think>"))
        cut = len(new_ids) >= room and not ended and not stops
        return replace(
            Answer.from_turn(turn),
            prompt_tokens=len(prompt_ids),
            completion_tokens=len(new_ids),
            finish_reason="length" if cut else None,
        )

    def _room(self, prompt_tokens: int, wanted: int | None) -> int:
        """How many tokens the answer may have."""
        room = min(wanted or self._max_new_tokens, self._max_new_tokens)
        if self._max_positions is None:
            return room
        left = self._max_positions - prompt_tokens
        if left < 1:
            raise QuestionError(
                f"the prompt has {prompt_tokens} tokens, and the model takes {self._max_positions} with its answer",
                "context_length_exceeded",
            )
        return min(room, left)

    def _generate(self, prompt_ids: list[int], room: int, question: Question, cancelled: threading.Event) -> list[int]:
        config = copy.deepcopy(self._model.generation_config)
        processors = _sampling(config, question, self._model.device)
        # Sampling is done by the processors; what is left is to take the highest.
        config.update(do_sample=False, temperature=None, top_p=None, top_k=None, num_beams=1, num_return_sequences=1)
        config.update(max_length=None, max_new_tokens=room, min_length=None, min_new_tokens=None)
        config.update(eos_token_id=sorted(self._ends) or None, pad_token_id=self._pad_id())
        ids_1P = torch.tensor([prompt_ids], device=self._model.device)
        stopping = _Stopping(cancelled, question.stop, self._text, len(prompt_ids))
        generated = self._model.generate(
            ids_1P,
            attention_mask=torch.ones_like(ids_1P),
            generation_config=config,
            logits_processor=LogitsProcessorList(processors),
            stopping_criteria=StoppingCriteriaList([stopping]),
        )
        new_ids: list[int] = generated[0, len(prompt_ids) :].tolist()
        return new_ids

    def _text(self, ids: Sequence[int]) -> str:
        """What was generated, without special tokens except those that mark calls and thoughts."""
        text: str = self._tokenizer.decode([one for one in ids if one not in self._dropped])
        return text

    def _pad_id(self) -> int | None:
        pad: int | None = self._tokenizer.pad_token_id
        return pad if pad is not None else min(self._ends, default=None)


class _Stopping:
    """Ends a generation when nobody waits for it any more, or when it has written a stop text."""

    def __init__(self, cancelled: threading.Event, stops: Sequence[str], text: Any, prompt_tokens: int) -> None:
        self._cancelled, self._stops, self._text, self._prompt_tokens = cancelled, stops, text, prompt_tokens
        # A character may take four tokens, a byte each; the newest token may complete a text with its first letter.
        self._window = 4 * max(map(len, stops), default=0) + 4

    def __call__(self, ids_1T: torch.Tensor, _: Any, **__: Any) -> torch.Tensor:
        done = self._cancelled.is_set()
        if self._stops and not done:
            start = max(self._prompt_tokens, ids_1T.shape[1] - self._window)
            written = self._text(ids_1T[0, start:].tolist())
            done = any(stop in written for stop in self._stops)
        return torch.full((ids_1T.shape[0],), done, dtype=torch.bool, device=ids_1T.device)


class _GumbelNoise:
    """Makes the highest score a sample: noise of this kind turns taking the maximum into drawing from the softmax.

    So the draw has a random state of its own, and a training run in the same process keeps its numbers.
    """

    def __init__(self, generator: torch.Generator) -> None:
        self._generator = generator

    def __call__(self, _: torch.Tensor, scores_1V: torch.Tensor) -> torch.Tensor:
        scores_1V = scores_1V.float()
        return scores_1V - torch.empty_like(scores_1V).exponential_(generator=self._generator).log()


def choose_device(device: str) -> torch.device:
    """The device of that name, tried out; "auto" is CUDA, else MPS, else the CPU.

    Raises:
        ValueError: there is no such device here.
    """
    if device == "auto":
        best = "cuda" if torch.cuda.is_available() else "mps" if torch.backends.mps.is_available() else "cpu"
        return torch.device(best)
    try:
        place = torch.device(device)
        torch.zeros(1, device=place)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"device {device!r} cannot be used: {reason}") from None
    return place


def _sampling(config: Any, question: Question, device: torch.device) -> list[Any]:
    """The processors that make greedy decoding draw; none if it is to stay greedy."""
    default = (config.temperature if config.temperature is not None else 1.0) if config.do_sample else 0.0
    temperature = question.temperature if question.temperature is not None else default
    if temperature < _COLDEST:
        return []
    top_p = question.top_p if question.top_p is not None else config.top_p
    processors: list[Any] = [TemperatureLogitsWarper(float(temperature))]
    if config.top_k:
        processors.append(TopKLogitsWarper(config.top_k))
    if top_p is not None and top_p < 1.0:
        processors.append(TopPLogitsWarper(top_p))
    generator = torch.Generator(device)
    if question.seed is None:
        generator.seed()
    else:
        generator.manual_seed(question.seed)
    return [*processors, _GumbelNoise(generator)]


def _ends_of_turn(model: Any, tokenizer: Any) -> set[int]:
    configured = model.generation_config.eos_token_id
    ends = set(configured) if isinstance(configured, list) else {configured}
    return {end for end in (*ends, tokenizer.eos_token_id) if end is not None}
