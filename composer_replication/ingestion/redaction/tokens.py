"""Secrets that are recognised by their own form: tokens with a prefix, and private keys.

The patterns are detect-secrets', as its plugins define them. The table below has what it lacks in version 1.5.0; an
entry there should go when the library gains it.
"""

from __future__ import annotations

import importlib
import pkgutil
import re
from collections.abc import Callable, Iterator

from detect_secrets.plugins.base import RegexBasedDetector

from composer_replication.ingestion.redaction.finding import Finding, Rule, is_identifier, is_name
from composer_replication.pattern_set import wider_gate

_LIBRARY = "detect_secrets.plugins"

# Plugins that are not used: addresses are no secrets; entropy alone would take every hash and id; the next ones find
# where a secret is but not where it ends, or miss common forms, and are replaced in this package. The last ones ask for
# too little: IBM's takes any 44 characters after `PASS: `, and so the names of Go's tests. What has a name is found in
# contexts.py, and Telegram's tokens are in the table below.
_NOT_USED = {
    *("base", "high_entropy_strings", "ip_public", "keyword", "private_key", "basic_auth"),
    *("ibm_cloud_iam", "ibm_cos_hmac", "softlayer", "cloudant", "telegram_token"),
}

# Plugins whose patterns are no more than a few letters and a word: `APACHE…` would be a token.
_HARDLY_A_PREFIX = {"artifactory", "discord", "twilio"}

_URL_SAFE = r"[A-Za-z0-9_-]"
_LACKING: dict[str, str] = {
    "AIRTABLE_TOKEN": r"pat[A-Za-z0-9]{14}\.[0-9a-f]{64}",
    "ANTHROPIC_KEY": rf"sk-ant-{_URL_SAFE}{{20,}}",
    "ATLASSIAN_TOKEN": r"AT[A-Z]TT3[A-Za-z0-9_=-]{50,}",
    "AGE_KEY": r"AGE-SECRET-KEY-1[0-9A-Z]{50,}",
    "BUILDKITE_TOKEN": r"bk(?:ua|aj|ct)_[0-9a-f]{40}",
    "CLOUDFLARE_TOKEN": r"v1\.0-[0-9a-f]{24}-[0-9a-f]{100,}",
    "DATABRICKS_TOKEN": r"dapi[0-9a-f]{32}",
    "DIGITALOCEAN_TOKEN": r"do[oprt]_v1_[0-9a-f]{64}",
    "DISCORD_WEBHOOK": rf"discord(?:app)?\.com/api/webhooks/\d{{15,}}/{_URL_SAFE}{{40,}}",
    "DOCKER_TOKEN": rf"dckr_(?:pat|oat)_{_URL_SAFE}{{20,}}",
    "DOPPLER_TOKEN": r"dp\.(?:pt|st|ct|sa|scim|audit)\.[A-Za-z0-9._-]{40,}",
    "FIGMA_TOKEN": rf"fig[dor]_{_URL_SAFE}{{30,}}",
    "FLY_TOKEN": r"f(?:m\d[ar]?_[A-Za-z0-9+/_-]{20,}={0,2}|o1_[A-Za-z0-9_-]{40,})",
    "GITHUB_TOKEN": r"(?:github_pat_[A-Za-z0-9_]{36,}|gh[pousr]_[A-Za-z0-9]{36,})",
    "GITLAB_TOKEN": r"gl(?:pat|dt|rt|oas|cbt|ptt|ft|imt|agent|soat|ffct)-[A-Za-z0-9_.-]{20,}",
    "GOOGLE_API_KEY": rf"AIza{_URL_SAFE}{{35}}",
    "GOOGLE_CLIENT_SECRET": rf"GOCSPX-{_URL_SAFE}{{24,}}",
    "GOOGLE_OAUTH_TOKEN": r"ya29\.[A-Za-z0-9._-]{30,}",
    "GRAFANA_TOKEN": r"gl(?:c_[A-Za-z0-9+/]{32,}={0,2}|sa_[A-Za-z0-9]{32}_[A-Fa-f0-9]{8})",
    "GROQ_KEY": r"gsk_[A-Za-z0-9]{40,}",
    "HEROKU_KEY": rf"HRKU-{_URL_SAFE}{{36,}}",
    "HUGGING_FACE_TOKEN": r"(?:hf|api_org)_[A-Za-z0-9]{30,}",
    # The library's pattern ends before the signature.
    "JSON_WEB_TOKEN": rf"eyJ{_URL_SAFE}{{8,}}\.eyJ{_URL_SAFE}{{8,}}(?:\.{_URL_SAFE}*)?",
    "LINEAR_KEY": r"lin_(?:api|oauth)_[A-Za-z0-9]{32,}",
    "MAILGUN_KEY": r"(?:(?<![-_])key-[0-9a-f]{32}|[0-9a-f]{32}-[0-9a-f]{8}-[0-9a-f]{8})",
    "NETLIFY_TOKEN": r"nfp_[A-Za-z0-9]{36,}",
    "NEW_RELIC_KEY": r"NR(?:AK|RA|II|IQ|JS)-[A-Z0-9]{27,}",
    "NOTION_TOKEN": r"(?:ntn_[A-Za-z0-9]{40,}|secret_[A-Za-z0-9]{43})",
    "NPM_TOKEN": r"npm_[A-Za-z0-9]{36,}",
    "ONE_PASSWORD_TOKEN": rf"ops_eyJ{_URL_SAFE}{{100,}}={{0,2}}",
    # The library knows only keys with OpenAI's marker in their middle.
    "OPENAI_KEY": rf"sk-(?:[A-Za-z0-9]{{32,}}|(?:proj|svcacct|admin|None|lf|kimi)-{_URL_SAFE}{{20,}})",
    "OPENROUTER_KEY": r"sk-or-(?:v1-)?[0-9A-Za-z]{32,}",
    "PERPLEXITY_KEY": r"pplx-[A-Za-z0-9]{40,}",
    "PLANETSCALE_TOKEN": r"pscale_(?:tkn|oauth|pw)_[A-Za-z0-9=._-]{32,}",
    "POSTMAN_KEY": r"PMAK-[0-9a-f]{24}-[0-9a-f]{34}",
    "PULUMI_TOKEN": r"pul-[0-9a-f]{40}",
    "PYPI_TOKEN": rf"pypi-{_URL_SAFE}{{50,}}",
    "REPLICATE_TOKEN": r"r8_[A-Za-z0-9]{37,}",
    "RUBYGEMS_KEY": r"rubygems_[0-9a-f]{48}",
    "SENTRY_TOKEN": r"sntry[su]_[A-Za-z0-9_=+/-]{40,}",
    "SHOPIFY_TOKEN": r"shp(?:at|ca|pa|ss)_[0-9a-fA-F]{32}",
    "SLACK_TOKEN": r"x(?:ox[a-z](?:\.xox[a-z])?-\d-|ox[a-z]-\d+-|app-\d-)[A-Za-z0-9-]{20,}",
    "SQUARE_TOKEN": rf"(?:sq0[a-z]{{3}}-{_URL_SAFE}{{22,}}|(?<![+/])EAAA{_URL_SAFE}{{60}})",
    "STRIPE_KEY": r"(?:[rs]k_(?:live|test)_[0-9A-Za-z]{20,}|whsec_[A-Za-z0-9+/]{32,}={0,2})",
    "SUPABASE_KEY": rf"sb(?:p_[0-9a-f]{{40}}|_secret_{_URL_SAFE}{{20,}})",
    "TAILSCALE_KEY": r"tskey-[a-z]+-[A-Za-z0-9]+-[A-Za-z0-9]{20,}",
    "TELEGRAM_BOT_TOKEN": rf"\d{{8,10}}:AA{_URL_SAFE}{{33}}",
    "TERRAFORM_TOKEN": r"[A-Za-z0-9]{14}\.atlasv1\.[A-Za-z0-9_=-]{60,}",
    "VAULT_TOKEN": rf"hv[sbr]\.{_URL_SAFE}{{24,}}",
    "XAI_KEY": r"xai-[A-Za-z0-9]{60,}",
    "AZURE_CLIENT_SECRET": r"[A-Za-z0-9_~.-]{3}[78]Q~[A-Za-z0-9_~.-]{31,34}",
}

_KEY_BEGIN = re.compile(
    r"-----BEGIN [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----"
    r"|PuTTY-User-Key-File-\d:"
)
_KEY_END = re.compile(
    r"-----END [A-Z0-9 ]{0,30}PRIVATE KEY(?: BLOCK)?-----|---- END SSH2 ENCRYPTED PRIVATE KEY ----"
    r"|Private-MAC:\s*[0-9a-f]+"
)
_LONGEST_KEY = 20_000
_KEY_BODY = re.compile(r"(?:[A-Za-z0-9+/=\s:,.()\x80-\xff|\"'>_-]|\\+[nrt\"])+")
# As much of a key as is there, because logs are cut: headers and lines of base64. Line breaks may be escaped; whatever
# printed the lines may have numbered or quoted them.
_BREAK = r"(?:\s|\\+[nrt]|[\"'+>|,]|\b\d{1,5}(?:[:|]|[\x80-\xff]+))"
_CUT_KEY = re.compile(
    rf"(?:{_BREAK}+[A-Z][A-Za-z]+(?:-[A-Za-z]+)?: [^\n\\]{{0,100}})*(?:{_BREAK}+[A-Za-z0-9+/=]{{16,}})+"
    rf"(?:(?:\n|\\+n){_BREAK}*[A-Za-z0-9+/=]{{1,15}}(?=[ \t]*(?:\n|\\+n|\"|\Z)))?"
)
_BASE64_LINE = re.compile(r"[A-Za-z0-9+/=]{30}")

# Escapes end in a letter, which is no part of the token that follows.
_ESCAPE_BEFORE = re.compile(r"(?:\\[nrtbf]|(?:\x1b|\\(?:u001b|x1b|033|e))\[[0-9;]*m|\\u00[0-9a-f]{2}|%[0-9A-F]{2})\Z")
_TOKEN_TAIL = re.compile(r"[A-Za-z0-9_-]*")
_MASK = re.compile(r"(?i)x{6}|example|your[-_]|redacted|\*{3}|\.{3}")
# `glpat-the-name-of-a-branch`, `sk-proj-key-for-e2e-tests`, `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`
_LOWER_CASE = re.compile(r"[a-z0-9]+(?:[-_./][a-z0-9]+){3,}")
_CAMEL_CASE = re.compile(r"[a-z]+_(?P<name>[A-Za-z]+)")
_VALUE_END = re.compile(r"[\s\"'`<>]", re.ASCII)


def token_rules() -> Iterator[Rule]:
    """The rules of this file; those of the library first."""
    for pattern, kind, accept in _library_patterns():
        yield Rule(wider_gate(pattern), _token_finder(pattern, kind, accept, by_context=accept is _is_aws_secret))
    for kind, text in _LACKING.items():
        pattern = re.compile(text)
        yield Rule(wider_gate(pattern), _token_finder(pattern, kind, _is_token))
    yield Rule("BEGIN [A-Z0-9 ]*PRIVATE KEY|PuTTY-User-Key-File", _private_keys)


def _library_patterns() -> Iterator[tuple[re.Pattern[str], str, Callable[[str], bool]]]:
    for found in pkgutil.iter_modules(importlib.import_module(_LIBRARY).__path__):
        if found.name in _NOT_USED:
            continue
        module = importlib.import_module(f"{_LIBRARY}.{found.name}")
        for plugin in vars(module).values():
            if getattr(plugin, "__module__", None) != module.__name__:
                continue
            if isinstance(plugin, type) and issubclass(plugin, RegexBasedDetector):
                kind = re.sub(r"[^A-Z0-9]+", "_", str(getattr(plugin, "secret_type", plugin.__name__)).upper()).strip(
                    "_"
                )
                # Only the plugin for web tokens has such a check: it decodes them.
                accept = getattr(plugin, "is_formally_valid", _is_token)
                if found.name in _HARDLY_A_PREFIX:
                    accept = _is_token_with_digit
                for pattern in vars(plugin)["denylist"]:
                    named = found.name == "aws" and pattern.groups
                    yield pattern, kind, _is_aws_secret if named else accept


def _token_finder(
    pattern: re.Pattern[str], kind: str, accept: Callable[[str], bool], by_context: bool = False
) -> Callable[[str], Iterator[Finding]]:
    def find(text: str) -> Iterator[Finding]:
        for match in pattern.finditer(text):
            start, end = _secret_span(match, text)
            if begins_token(text, start) and accept(text[start:end]):
                yield Finding(start, _TOKEN_TAIL.match(text, end).end(), kind, by_context)  # type: ignore[union-attr]

    return find


def _secret_span(match: re.Match[str], text: str) -> tuple[int, int]:
    """Return the span of the secret itself: the library's patterns may match more, up to a whole line."""
    start, end = max((span for span in map(match.span, range(1, 1 + match.re.groups))), key=_length, default=(0, 0))
    if end - start < 16:
        start, end = match.span()
    while start < end and not text[start].isalnum():
        start += 1
    cut = _VALUE_END.search(text, start, end)
    return start, cut.start() if cut else end


def _length(span: tuple[int, int]) -> int:
    return span[1] - span[0]


def begins_token(text: str, start: int) -> bool:
    """Whether a word begins here: inside of one is base64, or a name that ends like a prefix."""
    before = text[start - 1 : start]
    if not (before.isascii() and before.isalnum()):
        return True
    return _ESCAPE_BEFORE.search(text, max(0, start - 16), start) is not None


def _is_token(value: str) -> bool:
    """The pattern has the prefix, so this is about masks and words alone. Many a token is drawn without a digit."""
    return len(set(value)) >= 8 and _MASK.search(value) is None and not _is_words(value)


def _is_words(value: str) -> bool:
    if _LOWER_CASE.fullmatch(value):
        return is_identifier(value)
    camel_case = _CAMEL_CASE.fullmatch(value)
    return camel_case is not None and not camel_case["name"][1:].islower() and is_name(camel_case["name"])


def _is_token_with_digit(value: str) -> bool:
    return any(map(str.isdigit, value)) and not is_identifier(value) and _is_token(value)


def _is_aws_secret(value: str) -> bool:
    """Between a name with `aws` in it and quotes, 40 characters may also be a commit or a path."""
    return not value.islower() and _is_token_with_digit(value)


def _private_keys(text: str) -> Iterator[Finding]:
    # None, if the words stand without their dashes.
    begins = list(_KEY_BEGIN.finditer(text))
    for begin, following in zip(begins, [*(later.start() for later in begins[1:]), len(text)], strict=False):
        limit = min(following, begin.end() + _LONGEST_KEY)
        end = _KEY_END.search(text, begin.end(), limit)
        if end is None or not _KEY_BODY.fullmatch(text, begin.end(), end.start()):
            end = _CUT_KEY.match(text, begin.end(), limit)
        # Code that handles keys names the first line, maybe the last one too, without having a key.
        if end is not None and _BASE64_LINE.search(text, begin.end(), end.end()):
            yield Finding(begin.start(), end.end(), "PRIVATE_KEY")
