"""How endpoints report the tokens of an answer: the same call, in the words of each of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, NamedTuple, TypeAlias

from metered_billing import NANO, Usage

_FEE = 0.05  # of a router that uses the caller's own account at the vendor


class Taken(NamedTuple):
    """What a call took. `thinking` tokens are among those of the output; `cost` is in nano-dollars."""

    usage: Usage
    thinking: int
    cost: int

    @property
    def shown(self) -> int:
        """Tokens of the answer itself."""
        return self.usage.output - self.thinking


Dialect: TypeAlias = Callable[[Taken], dict[str, Any]]


def _counts(prompt: int, completion: int, total: int | None = None) -> dict[str, Any]:
    return {
        "prompt_tokens": prompt,
        "completion_tokens": completion,
        "total_tokens": prompt + completion if total is None else total,
    }


def _details(prompt: Mapping[str, int], thinking: int | None = None) -> dict[str, Any]:
    completion = {} if thinking is None else {"completion_tokens_details": {"reasoning_tokens": thinking}}
    return {"prompt_tokens_details": dict(prompt), **completion}


def _openrouter(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    details = _details({"cached_tokens": usage.cached, "cache_write_tokens": usage.written}, taken.thinking)
    return {**_counts(usage.prompt, usage.output), **details}


def _openai(taken: Taken) -> dict[str, Any]:
    counts = _counts(taken.usage.prompt, taken.usage.output)
    return {**counts, **_details({"cached_tokens": taken.usage.cached}, taken.thinking)}


def _counts_only(taken: Taken) -> dict[str, Any]:
    return _counts(taken.usage.prompt, taken.usage.output)


def _responses(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    return {
        "input_tokens": usage.prompt,
        "input_tokens_details": {"cached_tokens": usage.cached},
        "output_tokens": usage.output,
        "output_tokens_details": {"reasoning_tokens": taken.thinking},
        "total_tokens": usage.prompt + usage.output,
    }


def _deepseek(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    hits = {"prompt_cache_hit_tokens": usage.cached, "prompt_cache_miss_tokens": usage.prompt - usage.cached}
    return {**_counts(usage.prompt, usage.output), **hits}


def _xai(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    counts = _counts(usage.prompt, taken.shown, usage.prompt + usage.output)
    return {**counts, **_details({"cached_tokens": usage.cached}, taken.thinking)}


def _xai_ticks(taken: Taken) -> dict[str, Any]:
    return {**_xai(taken), "cost_in_usd_ticks": taken.cost * 10}


def _thinking_beside(taken: Taken) -> dict[str, Any]:
    reported = _xai(taken)
    del reported["total_tokens"]
    return reported


def _gemini(taken: Taken) -> dict[str, Any]:
    return _counts(taken.usage.prompt, taken.shown, taken.usage.prompt + taken.usage.output)


def _claude_parts(usage: Usage) -> dict[str, int]:
    parts = {"cache_creation_input_tokens": usage.written, "cache_read_input_tokens": usage.cached}
    return {name: tokens for name, tokens in parts.items() if tokens}


def _anthropic(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    parts = {"cache_creation_input_tokens": usage.written, "cache_read_input_tokens": usage.cached}
    return {"input_tokens": usage.fresh, "output_tokens": usage.output, **parts}


def _anthropic_sparse(taken: Taken) -> dict[str, Any]:
    return {"input_tokens": taken.usage.fresh, "output_tokens": taken.usage.output, **_claude_parts(taken.usage)}


def _anthropic_renamed(taken: Taken) -> dict[str, Any]:
    return {**_counts(taken.usage.fresh, taken.usage.output), **_claude_parts(taken.usage)}


def _anthropic_with_total(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    return {**_counts(usage.fresh, usage.output, usage.prompt + usage.output), **_claude_parts(usage)}


def _new_api(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    details = _details({"cached_tokens": usage.cached, "cached_creation_tokens": usage.written})
    both = {"input_tokens": usage.fresh, "output_tokens": usage.output}
    return {**_counts(usage.fresh, usage.output), **both, **details}


def _litellm(taken: Taken) -> dict[str, Any]:
    usage = taken.usage
    parts = {"cache_creation_input_tokens": usage.written, "cache_read_input_tokens": usage.cached}
    details = _details({"cached_tokens": usage.cached, "cache_creation_tokens": usage.written}, taken.thinking)
    return {**_counts(usage.prompt, usage.output), **parts, **details}


def _with_cost(taken: Taken) -> dict[str, Any]:
    return {**_openrouter(taken), "cost": taken.cost / NANO, "is_byok": False}


def _own_account(taken: Taken) -> dict[str, Any]:
    upstream = {"upstream_inference_cost": taken.cost / NANO}
    return {**_openrouter(taken), "cost": _FEE * taken.cost / NANO, "cost_details": upstream, "is_byok": True}


DIALECTS: Mapping[str, Dialect] = {
    "openrouter": _openrouter,
    "openrouter_cost": _with_cost,
    "openrouter_own_account": _own_account,
    "openai": _openai,
    "openai_responses": _responses,
    "counts_only": _counts_only,
    "deepseek": _deepseek,
    # Thinking is in the total alone; or in no sum at all.
    "xai": _xai,
    "xai_ticks": _xai_ticks,
    "thinking_beside": _thinking_beside,
    "gemini": _gemini,
    # The prompt is what was neither read from the cache nor written to it; parts of 0 tokens may be left out.
    "anthropic": _anthropic,
    "anthropic_sparse": _anthropic_sparse,
    "anthropic_renamed": _anthropic_renamed,
    "anthropic_with_total": _anthropic_with_total,
    "new_api": _new_api,
    # The same names, and the prompt is all of it.
    "litellm": _litellm,
}
