"""A Hugging Face causal LM with a chat template as a local teacher."""

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
from composer_replication.chat_templates import configured_ends
from composer_replication.pretrained import SmolLM2NotInstalledError, load_checkpoint
from composer_replication.teacher_replay.serving.chat_template import ChatTemplate
from composer_replication.teacher_replay.serving.decoding import BatchQueue, WrittenText, decode, sampling_of
from composer_replication.teacher_replay.serving.local_teacher import Completion, Question, QuestionError
from composer_replication.teacher_replay.serving.tool_call_text import MARKERS, read_reply, settled_reply

MAX_NEW_TOKENS = 1024
BATCH_SIZE = 8
DTYPES = ("auto", "float32", "bfloat16", "float16")


class HuggingFaceTeacher:
    """A teacher that generates with a model, several completions at a time.

    Questions that arrive while a batch is generated are the next batch. In a batch, prompts are padded to the longest.
    A completion is the same alone or in a batch, up to the rounding of the device.

    Temperature 0 is greedy decoding; above it, the same seed gives the same completion. A temperature, top-p or top-k
    that the client does not set comes from the model's generation config. Tool calls are read from the model's text
    (see `tool_call_text`); its thinking becomes `reasoning`. A prompt that does not fit into the model's context is
    refused; a completion ends where the context does.

    Args:
        model: a causal LM; it is put in evaluation mode and stays on its device.
        tokenizer: its tokenizer, with a chat template.
        max_new_tokens: the longest completion; requests may ask for less.
        batch_size: maximum number of completions generated at once. Memory grows with it.

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
        # A model that keeps its state in another form (RWKV) takes no padded batch.
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
            dtype: "float32", "bfloat16", "float16", or "auto" for that of the checkpoint.
            max_new_tokens: the longest completion.
            batch_size: maximum number of completions generated at once.

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

    async def answer(self, question: Question, /) -> Completion:
        """Generate a completion. If cancelled, its row leaves the batch at the next token."""
        with self._asked(question, is_streamed=False) as asked:
            while not (written := await asked.next()).is_whole:
                pass
        return _completion(written, question)

    async def stream(self, question: Question, /) -> AsyncIterator[Completion]:
        """Generate a completion and yield its pieces once no later token can change them (see `settled_reply`)."""
        sent = Completion()
        with self._asked(question, is_streamed=True) as asked:
            while not (written := await asked.next()).is_whole:
                settled = settled_reply(written.text, tools=question.tools, is_thinking=written.is_thinking)
                piece = _rest(Completion.from_turn(settled), sent)
                if piece.content or piece.reasoning or piece.tool_calls:
                    sent += piece
                    yield piece
        yield _rest(_completion(written, question), sent)

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
        """Answer a batch of questions. An error in one of them goes to its client alone."""
        generations = []
        for asked in batch:
            try:
                generations.append(self._generation(asked))
            except BaseException as error:  # noqa: BLE001 - it is raised again where the answer is awaited
                asked.tell(error)
        if not generations:
            return
        try:
            decode(self._model, generations, max(one.room for one in generations))
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
        """Return the maximum number of new tokens."""
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
        """Decode without special tokens, except those that mark calls and thoughts."""
        text: str = self._tokenizer.decode([one for one in ids if one not in self._dropped])
        return text


class _Written(NamedTuple):
    """The text that a model has written. Until `is_whole`, it is the part that no stop text can take back."""

    text: str
    is_thinking: bool
    prompt_tokens: int
    completion_tokens: int
    is_whole: bool = False
    is_cut: bool = False


class _Asked:
    """A question that waits or is being answered, and what the generating thread tells its client."""

    def __init__(self, question: Question, *, is_streamed: bool) -> None:
        self.question, self.is_streamed = question, is_streamed
        self.is_cancelled = False
        self._loop = asyncio.get_running_loop()
        self._events: asyncio.Queue[_Written | BaseException] = asyncio.Queue()

    def tell(self, event: _Written | BaseException) -> None:
        with suppress(RuntimeError):  # the loop is closed: nobody waits any more
            self._loop.call_soon_threadsafe(self._events.put_nowait, event)

    async def next(self) -> _Written:
        event = await self._events.get()
        if isinstance(event, BaseException):
            raise event
        return event


@dataclass(eq=False)
class _Generation:
    """A completion being generated: a `Row` of the running batch."""

    asked: _Asked
    prompt_ids: list[int]
    room: int
    sampling: list[Any]
    is_thinking: bool
    text: WrittenText
    ends: AbstractSet[int]
    tokens: int = 0

    def take(self, token: int, /) -> bool:
        """Add a token and return whether the row goes on."""
        self.tokens += 1
        self.text.add(token)
        has_ended = token in self.ends or self.text.is_stopped
        is_full = self.tokens >= self.room
        is_whole = has_ended or is_full or self.asked.is_cancelled
        if is_whole:
            self.text.end()
            is_cut = is_full and not has_ended and not self.text.is_stopped
            self.asked.tell(self._written(self.text.text)._replace(is_whole=True, is_cut=is_cut))
        elif self.asked.is_streamed:
            self.asked.tell(self._written(self.text.certain()))
        return not is_whole

    def _written(self, text: str) -> _Written:
        return _Written(text, self.is_thinking, len(self.prompt_ids), self.tokens)


def _completion(written: _Written, question: Question) -> Completion:
    return replace(
        Completion.from_turn(read_reply(written.text, tools=question.tools, is_thinking=written.is_thinking)),
        prompt_tokens=written.prompt_tokens,
        completion_tokens=written.completion_tokens,
        finish_reason="length" if written.is_cut else None,
    )


def _rest(whole: Completion, sent: Completion) -> Completion:
    """Return the completion without what the client has already."""
    return replace(
        whole,
        content=whole.content[len(sent.content) :],
        reasoning=whole.reasoning[len(sent.reasoning) :],
        tool_calls=whole.tool_calls[len(sent.tool_calls) :],
    )


def choose_device(device: str) -> torch.device:
    """Return the device of that name, after trying it; "auto" is CUDA, else MPS, else the CPU.

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
    return {end for end in (*configured_ends(model), tokenizer.eos_token_id) if end is not None}
