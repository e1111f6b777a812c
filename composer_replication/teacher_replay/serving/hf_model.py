"""A Hugging Face causal LM with a chat template, as a teacher."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from inspect import signature
from typing import Any, NamedTuple

import torch

from composer_replication._arguments import check_choice, check_count
from composer_replication._optional import MissingExtraError
from composer_replication._tiny.smollm2 import SmolLM2NotInstalledError
from composer_replication.teacher_replay.serving.answering import Answer, Question, QuestionError
from composer_replication.teacher_replay.serving.batch_queue import BatchQueue
from composer_replication.teacher_replay.serving.chat_template import ChatTemplate
from composer_replication.teacher_replay.serving.decoding import Row, decode, sampling_of
from composer_replication.teacher_replay.serving.hf_checkpoint import load_checkpoint
from composer_replication.teacher_replay.serving.tool_call_text import MARKERS, read_reply, settled_reply
from composer_replication.teacher_replay.serving.written_text import WrittenText

MAX_NEW_TOKENS = 1024
BATCH_SIZE = 8
DTYPES = ("auto", "float32", "bfloat16", "float16")


class HuggingFaceTeacher:
    """A teacher that generates with a model, several answers at a time.

    Questions that arrive while a batch is being answered make up the next one; in a batch, prompts are padded to the
    longest. An answer is the same alone or in a batch, up to the rounding of the device.

    Temperature 0 is greedy decoding; above it, the same seed gives the same answer. Temperature, top-p and top-k that
    the client leaves open come from the model's generation config. Tool calls are read from the model's text (see
    `tool_call_text`); its thinking becomes the answer's `reasoning`. A prompt that does not fit the model is refused;
    an answer that would not fit ends where the model's positions do.

    Args:
        model: a causal LM; it is put in evaluation mode and stays on its device.
        tokenizer: its tokenizer, with a chat template.
        max_new_tokens: the longest answer; requests may ask for less.
        batch_size: how many answers are generated at once, at most. Memory grows with it.

    Raises:
        ValueError: the tokenizer has no chat template, or a number is not positive.
    """

    def __init__(
        self, model: Any, tokenizer: Any, *, max_new_tokens: int = MAX_NEW_TOKENS, batch_size: int = BATCH_SIZE
    ) -> None:
        check_count("max_new_tokens", max_new_tokens)
        check_count("batch_size", batch_size)
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
        # One thread does it all: tokenizers are not made for several.
        # What keeps its state in another form (RWKV) takes no padded batch.
        takes_batches = {"past_key_values", "cache_params"} & signature(model.forward).parameters.keys()
        self._queue = BatchQueue(self._run, batch_size if takes_batches else 1)

    @classmethod
    def load(
        cls,
        name_or_path: str,
        *,
        device: str = "auto",
        dtype: str = "auto",
        max_new_tokens: int = MAX_NEW_TOKENS,
        batch_size: int = BATCH_SIZE,
    ) -> HuggingFaceTeacher:
        """Load a model and its tokenizer (see `load_checkpoint`).

        Args:
            name_or_path: a folder with a checkpoint or an adapter, the model's id on the hub, or smollm2.
            device: where it runs, such as "cuda:1"; "auto" takes CUDA, else MPS, else the CPU.
            dtype: "float32", "bfloat16", "float16", or "auto" for what the checkpoint has.
            max_new_tokens: the longest answer.
            batch_size: how many answers are generated at once, at most.

        Raises:
            ValueError: it cannot be loaded, or an argument is wrong; the message says which and why, in one line.
            ImportError: what it needs is not installed.
        """
        check_choice("dtype", dtype, DTYPES)
        place = choose_device(device)
        try:
            model, tokenizer = load_checkpoint(name_or_path, "auto" if dtype == "auto" else getattr(torch, dtype))
            return cls(model.to(place), tokenizer, max_new_tokens=max_new_tokens, batch_size=batch_size)
        except (MissingExtraError, SmolLM2NotInstalledError):
            raise
        except Exception as error:  # a damaged checkpoint may raise anything
            reason = " ".join(str(error).split())[:300] or type(error).__name__
            raise ValueError(f"cannot load the model {name_or_path!r}: {reason}") from error

    async def answer(self, question: Question, /) -> Answer:
        """Generate an answer. Cancelled, its row leaves the batch with the token it is at."""
        with self._asked(question, is_streamed=False) as asked:
            while not isinstance(event := await asked.next_event(), _Reply):
                pass
        return _answer(event, question)

    async def stream(self, question: Question, /) -> AsyncIterator[Answer]:
        """Generate an answer and give its pieces as they become certain (see `settled_reply`)."""
        sent, text = Answer(), ""
        with self._asked(question, is_streamed=True) as asked:
            while not isinstance(event := await asked.next_event(), _Reply):
                text += event.text
                settled = settled_reply(text, tools=question.tools, is_thinking=event.is_thinking)
                piece = _rest(Answer.from_turn(settled), sent)
                if piece.content or piece.reasoning or piece.tool_calls:
                    sent += piece
                    yield piece
        yield _rest(_answer(event, question), sent)

    @contextmanager
    def _asked(self, question: Question, *, is_streamed: bool) -> Iterator[_Asked]:
        asked = _Asked(question, is_streamed=is_streamed)
        self._queue.put(asked)
        try:
            yield asked
        finally:
            asked.is_cancelled = True
            self._queue.discard(asked)

    def _run(self, batch: list[_Asked]) -> None:
        """Answer a batch of questions. What is wrong with one of them is told to its client alone."""
        generations = []
        for asked in batch:
            try:
                generations.append(self._generation(asked))
            except BaseException as error:  # noqa: BLE001 - it is raised again where the answer is awaited
                asked.tell(error)
        if not generations:
            return
        rows = [Row(one.prompt_ids, one.sampling, one.take) for one in generations]
        try:
            decode(self._model, rows, max(one.room for one in generations))
        except BaseException as error:  # noqa: BLE001 - the same; those that have their answer take no notice
            for asked in batch:
                asked.tell(error)

    def _generation(self, asked: _Asked) -> _Generation:
        question = asked.question
        prompt = self._template.prompt(question.messages, question.tools)
        prompt_ids = self._tokenizer(prompt, add_special_tokens=False)["input_ids"]
        if not prompt_ids:
            raise QuestionError("the model's chat template makes an empty prompt of the messages", "template_refused")
        return _Generation(
            asked,
            prompt_ids,
            self._room(len(prompt_ids), question.max_tokens),
            sampling_of(self._model.generation_config, question, self._model.device),
            is_thinking=prompt.rstrip().endswith("<think>"),
            text=WrittenText(self._decoded, question.stop),
            ends=self._ends,
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

    def _decoded(self, ids: Sequence[int]) -> str:
        """What was generated, without special tokens except those that mark calls and thoughts."""
        text: str = self._tokenizer.decode([one for one in ids if one not in self._dropped])
        return text


class _Text(NamedTuple):
    """More text of an answer that is being written."""

    text: str
    is_thinking: bool


class _Reply(NamedTuple):
    """All that a model wrote."""

    text: str
    is_thinking: bool
    prompt_tokens: int
    completion_tokens: int
    is_cut: bool


class _Asked:
    """A question that waits or is being answered, and what its client is told from another thread."""

    def __init__(self, question: Question, *, is_streamed: bool) -> None:
        self.question, self.is_streamed = question, is_streamed
        self.is_cancelled = False
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Text | _Reply | BaseException] = asyncio.Queue()

    def tell(self, event: _Text | _Reply | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next_event(self) -> _Text | _Reply:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event


@dataclass(eq=False)
class _Generation:
    """An answer in the making: a row of the running batch."""

    asked: _Asked
    prompt_ids: list[int]
    room: int
    sampling: list[Any]
    is_thinking: bool
    text: WrittenText
    ends: AbstractSet[int]
    tokens: int = 0
    told: int = 0

    def take(self, token: int) -> bool:
        """Whether the answer goes on after this token."""
        self.tokens += 1
        self.text.add(token)
        has_ended = token in self.ends
        is_full = self.tokens >= self.room
        if has_ended or is_full or self.text.is_stopped or self.asked.is_cancelled:
            self.text.end()
            is_cut = is_full and not has_ended and not self.text.is_stopped
            text, asked = self.text.text, self.asked
            asked.tell(_Reply(text, self.is_thinking, len(self.prompt_ids), self.tokens, is_cut))
            return False
        if self.asked.is_streamed:
            certain = self.text.certain()
            if len(certain) > self.told:
                self.asked.tell(_Text(certain[self.told :], self.is_thinking))
                self.told = len(certain)
        return True


def _answer(reply: _Reply, question: Question) -> Answer:
    return replace(
        Answer.from_turn(read_reply(reply.text, tools=question.tools, is_thinking=reply.is_thinking)),
        prompt_tokens=reply.prompt_tokens,
        completion_tokens=reply.completion_tokens,
        finish_reason="length" if reply.is_cut else None,
    )


def _rest(answer: Answer, sent: Answer) -> Answer:
    """The answer without what the client has already."""
    return replace(
        answer,
        content=answer.content[len(sent.content) :],
        reasoning=answer.reasoning[len(sent.reasoning) :],
        tool_calls=answer.tool_calls[len(sent.tool_calls) :],
    )


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


def _ends_of_turn(model: Any, tokenizer: Any) -> set[int]:
    configured = model.generation_config.eos_token_id
    ends = set(configured) if isinstance(configured, list) else {configured}
    return {end for end in (*ends, tokenizer.eos_token_id) if end is not None}
