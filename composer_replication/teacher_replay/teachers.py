"""Remote teachers: their specs, keys and model families, and the resolved form that calls need."""

from __future__ import annotations

import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypedDict
from urllib.parse import urlsplit

from composer_replication.teacher_replay.prices import NANO, Price, listed_price, listed_window, to_nano

# Patterns of a name's parts. They go before the maker's, as in "nvidia/llama-3.1-nemotron".
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
    """Return the families of a model, by its name in any spelling (with or without a maker, a date or a size).

    There are two for a model that was distilled from another, such as "deepseek-r1-distill-qwen-32b": it tends to
    agree with both. There is none for an unknown name.
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
    """Return a family that a teacher shares with one of the student's models; None if no shared one is known."""
    students = frozenset[str]().union(*(model_families(model) for model in student_models if model))
    return min(students.intersection(teacher_families), default=None)


def same_family(teachers: Iterable[RemoteTeacher], student_models: Sequence[str]) -> dict[str, str]:
    """Return the slugs of the teachers that share a family with one of the student's models, with that family."""
    shared = {one.slug: shared_family(one.families, student_models) for one in teachers}
    return {slug: family for slug, family in shared.items() if family is not None}


_HERMES = Path("~/.hermes/.env")
_LINE = re.compile(
    r"""\s* (?:export\s+)? (?P<name>[A-Za-z_]\w*) \s*=\s*
    (?: "(?P<double>[^"]*)"\s* | '(?P<single>[^']*)'\s* | (?P<bare>(?:[^\s\#].*?)?) (?:\s+|$) )
    (?:\#.*)?""",
    re.VERBOSE,
)


class MissingKeyError(RuntimeError):
    """A teacher's key was not found."""

    def __init__(self, teacher: str, variable: str) -> None:
        super().__init__(
            f"teacher {teacher} needs a key: set {variable}, or put it into a file for --env-file or into {_HERMES}"
        )


def find_key(variable: str, env_file: str | os.PathLike[str] | None = None) -> str | None:
    """Return the value of a variable from the environment, `env_file` or `~/.hermes/.env`, in that order; else None.

    Raises:
        FileNotFoundError: `env_file` does not exist.
    """
    if env_file is not None and not Path(env_file).is_file():
        raise FileNotFoundError(f"{env_file}: there is no such file of environment variables")
    if from_environment := os.environ.get(variable, "").strip():
        return from_environment
    hermes = _HERMES.expanduser()
    files = [*([] if env_file is None else [Path(env_file)]), *([hermes] if hermes.is_file() else [])]
    return next((key for file in files if (key := read_env_file(file).get(variable))), None)


def read_env_file(path: Path) -> dict[str, str]:
    """The `NAME=value` lines of a file: `export` and quotes are taken away, comments and other lines passed over."""
    lines = map(_LINE.fullmatch, path.read_text(encoding="utf-8-sig", errors="replace").splitlines())
    return {line["name"]: line["double"] or line["single"] or line["bare"] or "" for line in lines if line is not None}


OPENROUTER = "https://openrouter.ai/api/v1"
OPENROUTER_KEY = "OPENROUTER_API_KEY"
# What Claude's endpoints charge for a token that goes into their cache, as a multiple of a token that does not.
_CACHE_WRITE = 1.25
# A header can hold nothing else; an HTTP client that is given something else repeats it in its error.
_KEY = re.compile(r"[!-~]+")
# What endpoints of this name take instead of `max_tokens`.
_COMPLETION_LIMIT = {"api.openai.com": "max_completion_tokens"}


class _Named(TypedDict):
    slug: str


class TeacherSpec(_Named, total=False):
    """A teacher as a user writes it. Only `slug` is needed; it names the teacher in results and in the ledger.

    Prices are dollars per million tokens; what is left out comes from `genai-prices`, and is 0 on this machine.
    `base_url` is an OpenAI-compatible endpoint (default: OpenRouter), `model` the name it knows the model by (default:
    the slug), `api_key_variable` the variable that holds its key (default: OPENROUTER_API_KEY for OpenRouter, none
    elsewhere). `max_output_tokens` bounds an answer, and with it the price of the worst case. `concurrency` is how many
    of its calls may be in flight. `parameters` go into the request (temperature, reasoning effort, ...).
    `cache_control` puts markers for prompt caching into the messages (default: for Claude, which caches nothing without
    them). `context_window` is how many tokens fit it (default: from `genai-prices`, or its endpoint's list of models):
    prompts that are longer are not sent. `family` is the family of models it belongs to (default: read from the name).
    """

    input_per_mtok: float
    output_per_mtok: float
    cached_input_per_mtok: float
    cache_write_per_mtok: float
    base_url: str
    model: str
    api_key_variable: str | None
    max_output_tokens: int
    concurrency: int
    parameters: dict[str, Any]
    cache_control: bool
    context_window: int
    family: str


_PRICES = ("input_per_mtok", "output_per_mtok", "cached_input_per_mtok", "cache_write_per_mtok")
_FIELDS = frozenset(TeacherSpec.__annotations__) | {"slug"}
# Parameters that the request itself sets, and those that would cost more than the price list says.
_OURS = ("model", "messages", "tools", "functions", "max_tokens", "max_completion_tokens", "stream", "n")
_UNPRICED = ("best_of", "models", "plugins", "service_tier", "web_search_options")
# Reasoning counts as output, and a cut answer is paid for and useless.
DEFAULT_MAX_OUTPUT_TOKENS = 8192


class TeacherError(ValueError):
    """A teacher spec that cannot be used."""


@dataclass(frozen=True)
class RemoteTeacher:
    """A teacher behind an HTTP endpoint, with everything filled in."""

    slug: str
    model: str
    base_url: str
    price: Price
    max_output_tokens: int
    concurrency: int | None
    parameters: Mapping[str, Any]
    cache_control: bool
    families: frozenset[str]
    key_variable: str | None
    context_window: int | None = None
    api_key: str | None = field(default=None, repr=False)

    @property
    def settings(self) -> dict[str, Any]:
        """The part of a request that is the same for every prompt. With slug and prompt, it identifies a call."""
        limit = _COMPLETION_LIMIT.get(urlsplit(self.base_url).hostname or "", "max_tokens")
        return {"model": self.model, limit: self.max_output_tokens, **self.parameters}

    @property
    def request_settings(self) -> dict[str, Any]:
        """`settings`, and what a router needs so that a call costs no more than was reserved for it, and no parameter
        is ignored. It is not part of a call's identity: prices change, answers stay valid."""
        if not _is_openrouter(self.base_url):
            return self.settings
        provider = self.parameters.get("provider") or {}
        reserved = {"prompt": self.price.input / NANO, "completion": self.price.output / NANO}
        most = {**reserved, **(provider.get("max_price") or {})}
        most |= {name: min(most[name], price) for name, price in reserved.items()}
        return {**self.settings, "provider": {"require_parameters": True, **provider, "max_price": most}}

    def worst_case(self, prompt_tokens: int) -> int:
        """Return the highest possible cost of a call in nano-dollars; parameters may become part of the prompt."""
        parameters = len(json.dumps(self.parameters)) if self.parameters else 0
        return self.price.worst_case(prompt_tokens + parameters, self.max_output_tokens)

    def require_key(self) -> None:
        """Raise `MissingKeyError` if the teacher needs a key and has none."""
        if self.key_variable is not None and not self.api_key:
            raise MissingKeyError(self.slug, self.key_variable)


def resolve_teachers(
    specs: Sequence[TeacherSpec | str],
    *,
    api_key: str | None = None,
    env_file: str | os.PathLike[str] | None = None,
) -> list[RemoteTeacher]:
    """Fill in what the specs leave out. `api_key` is for OpenRouter alone: it never goes to another endpoint.

    Raises:
        TeacherError: a spec is wrong, its price is unknown, or two have one name.
    """
    if not specs:
        raise TeacherError("there are no teachers: name at least one")
    teachers = [_resolve(spec, api_key, env_file) for spec in specs]
    slugs = [teacher.slug for teacher in teachers]
    twice = sorted({slug for slug in slugs if slugs.count(slug) > 1})
    if twice:
        raise TeacherError(f"teacher {twice[0]} is named twice: give one of them another slug, and `model`")
    return teachers


def load_teachers(path: str | os.PathLike[str]) -> list[TeacherSpec]:
    """Return the teachers of a YAML or JSON file: a list of specs, or `teachers:` with that list.

    Raises:
        TeacherError: the file holds something else.
    """
    import yaml

    file = Path(path)
    try:
        content = yaml.safe_load(file.read_text(encoding="utf-8"))
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        # Where, not what: the line may hold a key.
        mark = getattr(error, "problem_mark", None)
        where = f" at line {mark.line + 1}" if mark is not None else ""
        raise TeacherError(f"{file} is neither YAML nor JSON: {type(error).__name__}{where}") from None
    listed = content.get("teachers") if isinstance(content, Mapping) else content
    if not isinstance(listed, list) or not listed:
        raise TeacherError(f"{file} holds no list of teachers: write one `- slug: ...` for each")
    return listed


def _resolve(spec: Any, api_key: str | None, env_file: str | os.PathLike[str] | None) -> RemoteTeacher:
    given: Mapping[str, Any] = {"slug": spec} if isinstance(spec, str) else spec
    if not isinstance(given, Mapping):
        raise TeacherError(f"a teacher is a slug, or a mapping with a `slug`, not {type(spec).__name__}")
    if not isinstance(given.get("slug"), str) or not given["slug"].strip():
        # Its fields, not their values: somebody may have written a key among them.
        raise TeacherError(f"a teacher needs a `slug`; this one has {', '.join(map(str, given)) or 'nothing'}")
    slug = given["slug"]
    _check(slug, given)
    base_url = given.get("base_url", OPENROUTER).rstrip("/")
    is_openrouter = base_url == OPENROUTER
    variable = given.get("api_key_variable", OPENROUTER_KEY if is_openrouter else None)
    key = api_key.strip() if api_key and is_openrouter and "api_key_variable" not in given else None
    key = key or (find_key(variable, env_file) if variable else None)
    if key and not _KEY.fullmatch(key):
        raise TeacherError(
            f"teacher {slug}: the key in {variable} holds a space, a line end or a letter that no key has"
        )
    model = given.get("model", slug)
    own_family = frozenset({given["family"]}) if "family" in given else frozenset()
    families = own_family or model_families(model) or model_families(slug)
    cache_control = given.get("cache_control", "claude" in families)
    return RemoteTeacher(
        slug=slug,
        model=model,
        base_url=base_url,
        price=_price(slug, model, None if is_openrouter else base_url, given, cache_control=cache_control),
        max_output_tokens=given.get("max_output_tokens", DEFAULT_MAX_OUTPUT_TOKENS),
        concurrency=given.get("concurrency"),
        parameters=dict(given.get("parameters") or {}),
        cache_control=cache_control,
        families=families,
        key_variable=variable,
        context_window=given.get("context_window") or listed_window(model, None if is_openrouter else base_url),
        api_key=key,
    )


def _check(slug: str, given: Mapping[str, Any]) -> None:
    def refuse(what: str) -> TeacherError:
        return TeacherError(f"teacher {slug}: {what}")

    if unknown := sorted(set(given) - _FIELDS, key=str):
        raise refuse(f"unknown field {unknown[0]!r}; the fields are {', '.join(sorted(_FIELDS))}")
    for name in _PRICES:
        price = given.get(name, 0.0)
        if isinstance(price, bool) or not isinstance(price, int | float) or not math.isfinite(price) or price < 0:
            raise refuse(f"{name} must be dollars per million tokens, 0 or more, not {price!r}")
    for name in ("max_output_tokens", "concurrency", "context_window"):
        number = given.get(name, 1)
        if isinstance(number, bool) or not isinstance(number, int) or number < 1:
            raise refuse(f"{name} must be a whole number of at least 1, not {number!r}")
    if "base_url" in given:
        _check_url(given["base_url"], refuse)
    for name in ("model", "family", "api_key_variable"):
        text = given.get(name, "x")
        if not (isinstance(text, str) and text.strip()) and not (name == "api_key_variable" and text is None):
            raise refuse(f"{name} must be a text, not {text!r}")
    variable = given.get("api_key_variable") or "X"
    if not (variable.isidentifier() and variable.isascii()):
        # Not shown: it may be the key itself.
        raise refuse("api_key_variable must be the name of an environment variable, such as MY_KEY")
    if not isinstance(given.get("cache_control", False), bool):
        raise refuse(f"cache_control must be true or false, not {given['cache_control']!r}")
    parameters = given.get("parameters") or {}
    if not isinstance(parameters, Mapping):
        raise refuse(f"parameters must be a mapping, not {type(parameters).__name__}")
    if reserved := [name for name in (*_OURS, *_UNPRICED) if name in parameters]:
        raise refuse(f"parameters must not hold {reserved[0]!r}: the request sets it, or its price is not known")
    if _is_openrouter(given.get("base_url", OPENROUTER)):
        provider = parameters.get("provider") or {}
        prices = (provider.get("max_price") or {}) if isinstance(provider, Mapping) else None
        if not isinstance(prices, Mapping) or not all(type(price) in (int, float) for price in prices.values()):
            raise refuse(
                "the parameter provider must be a mapping, and its max_price one of dollars per million tokens"
            )
    try:
        json.dumps(parameters, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise refuse(f"parameters must be what JSON can hold: {error}") from None


def _is_openrouter(base_url: str) -> bool:
    return base_url == OPENROUTER or f".{urlsplit(base_url).hostname}".endswith(".openrouter.ai")


def _check_url(base_url: Any, refuse: Callable[[str], TeacherError]) -> None:
    try:
        parts = urlsplit(base_url if isinstance(base_url, str) else "")
        is_url = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        parts, is_url = urlsplit(""), False
    if parts.username or parts.password:
        raise refuse("base_url must not hold a password: name the key's variable in api_key_variable")
    if not is_url or parts.query or parts.fragment:
        # Without its end, where a key may stand.
        shown = base_url.partition("?")[0].partition("#")[0] if isinstance(base_url, str) else base_url
        more = " with something after it" if shown != base_url else ""
        raise refuse(f"base_url must be a URL such as http://127.0.0.1:8000/v1, not {shown!r}{more}")


def _price(slug: str, model: str, base_url: str | None, given: Mapping[str, Any], *, cache_control: bool) -> Price:
    listed: Price | None = None
    if not all(name in given for name in ("input_per_mtok", "output_per_mtok")):
        try:
            listed = listed_price(model, base_url)
        except LookupError:
            raise TeacherError(
                f"teacher {slug}: no price is known for {model}: check the name, or give input_per_mtok and "
                f"output_per_mtok (dollars per million tokens, 0 if it is your own)"
            ) from None

    def price(name: str, otherwise: int) -> int:
        return to_nano(given[name]) if name in given else otherwise

    own_input = price("input_per_mtok", listed.input if listed else 0)
    # Without a price of its own, a cached token is charged in full, and one that goes into the cache as Claude's are.
    same = listed is not None and listed.input == own_input
    own_write = math.ceil(own_input * _CACHE_WRITE) if cache_control else own_input
    return Price(
        input=own_input,
        output=price("output_per_mtok", listed.output if listed else 0),
        cached_input=price("cached_input_per_mtok", listed.cached_input if same and listed else own_input),
        cache_write=price("cache_write_per_mtok", listed.cache_write if same and listed else own_write),
    )


def _default(slug: str) -> TeacherSpec:
    price = listed_price(slug, None)
    return TeacherSpec(
        slug=slug,
        input_per_mtok=price.input / NANO,
        output_per_mtok=price.output / NANO,
        cached_input_per_mtok=price.cached_input / NANO,
        cache_write_per_mtok=price.cache_write / NANO,
    )


DEFAULT_TEACHERS: list[TeacherSpec] = [
    _default(slug) for slug in ("anthropic/claude-opus-4.7", "openai/gpt-5", "deepseek/deepseek-v4-pro")
]
