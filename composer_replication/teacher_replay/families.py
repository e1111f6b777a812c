"""Which family a model belongs to: a student among its own kind of teachers agrees with itself."""

from __future__ import annotations

import re
from collections.abc import Iterable

# In a name's parts: a maker says nothing if the model's own name does, as in "nvidia/llama-3.1-nemotron".
_VERSION = r"(?:[\d.]+\w*)?"
_FAMILIES = (
    ("claude", r"(?:claude|opus|sonnet|haiku)"),
    ("gpt", r"(?:(?:chat)?gpt|codex|o[1345](?:mini|pro)?|davinci|computer-use)"),
    ("gemini", r"(?:gemini|gemma|palm|bard)"),
    ("deepseek", r"deepseek"),
    ("qwen", r"(?:qwen\d*|qwq|qvq)"),
    ("llama", r"(?:(?:code)?llama\d*|nemotron|hermes)"),
    ("mistral", r"(?:mi[sx]tral|codestral|devstral|ministral|magistral|pixtral|mathstral)"),
    ("kimi", r"(?:kimi|moonshot)"),
    ("glm", r"(?:(?:chat)?glm\d*|codegeex)"),
    ("grok", r"grok"),
    ("command", r"(?:command|c4ai|aya)"),
    ("phi", r"phi\d*"),
    ("minimax", r"minimax"),
    ("nova", r"nova"),
    ("granite", r"granite"),
    ("smollm", r"smollm\d*"),
    ("composer", r"composer"),
    ("olmo", r"olmo\d*"),
    ("jamba", r"jamba"),
    ("yi", r"yi"),
    ("ernie", r"ernie"),
    ("hunyuan", r"hunyuan"),
    ("starcoder", r"starcoder\d*"),
)
_MAKERS = {
    "anthropic": "claude",
    "openai": "gpt",
    "google": "gemini",
    "deepseek-ai": "deepseek",
    "mistralai": "mistral",
    "moonshotai": "kimi",
    "x-ai": "grok",
    "xai": "grok",
    "zai-org": "glm",
    "z-ai": "glm",
    "thudm": "glm",
    "meta-llama": "llama",
}


def model_families(name: str) -> frozenset[str]:
    """The families of a model, by its name in any spelling (with or without a maker, a date or a size).

    There are two for a model that one trained on another's answers, such as "deepseek-r1-distill-qwen-32b": it may
    agree with either for no better reason than that. None for a name that says nothing.
    """
    maker, _, model = name.lower().strip().rpartition("/")
    # "us.anthropic.claude-sonnet-4-5" has its maker before a dot.
    parts = re.split(r"[^a-z0-9.]+|(?<=[a-z])\.(?=[a-z])", model.partition(":")[0])
    named = [family for part in parts for family, pattern in _FAMILIES if re.fullmatch(pattern + _VERSION, part)]
    if not named:
        known = _MAKERS.get(maker.rpartition("/")[2])
        return frozenset() if known is None else frozenset({known})
    # The first name counts ("gpt-5-codex"), unless a second one says whose answers it learned from, or into what.
    return frozenset(named) if "distill" in parts else frozenset(named[:1])


def shared_family(teacher_families: Iterable[str], student_models: Iterable[str | None]) -> str | None:
    """A family that a teacher and one of the student's models are both of; None if there is none that is known."""
    students = frozenset[str]().union(*(model_families(model) for model in student_models if model))
    return min(students.intersection(teacher_families), default=None)
