"""Secrets that only their surroundings reveal: assignments, headers, command lines, URLs."""

from __future__ import annotations

import base64
import binascii
import re
from collections.abc import Iterator
from functools import cache, lru_cache
from typing import Any

import re2
from detect_secrets.plugins.keyword import DENYLIST

from composer_replication.coding_tools import word_set
from composer_replication.ingestion.redaction.finding import (
    Finding,
    Rule,
    is_identifier,
    is_words_and_number,
    mixes_case,
    stands_for_a_secret,
)

PASSWORD = "PASSWORD"
SECRET = "SECRET"
# What only a name such as `redis_key` says: it may as well be a key of a mapping. Reported as a secret.
_SOME_KEY = "SOME_KEY"

# The library's key words, and those it leaves out because in source code they are too common. Here the value decides.
_MORE_KEYWORDS = "token|passphrase|credential|authorization|access[_-]?key|[_-]key|_pass|_pw|_auth|cookie"
_KEYWORD = "|".join(word.replace("_?", "[_-]?") for word in DENYLIST if word.isascii())
_KEYWORD = f"(?i:{_KEYWORD}|{_MORE_KEYWORDS})"

# A key word with the rest of its name, and what separates a name from a value: `=`, `:`, `:=`, `=>`, the comma of
# `getenv("API_KEY", "…")`, the end of an XML tag, a space (after an option, in a netrc file, after `git config`, in
# "the password is …"). RE2 finds the places; the patterns below then look closer.
_NAMED = (
    r"\b(?i:pass|pw)(?:\\*[\"'`])?[\])]?[ \t]*[=:]"
    rf"|{_KEYWORD}[\w.-]*(?:\\*[\"'`])?[\])]?[ \t]*[=:,>]"
    rf"|-[\w-]*{_KEYWORD}[\w-]*[\"']?,?[ \t]"
    r"|(?:login|user|account)[ \t]+\S+\s+password[ \t]"
    rf"|(?:setx?|ENV|ARG|config)[ \t]+[\w.-]*{_KEYWORD}[\w.-]*[ \t]"
    r"|(?i:password|passphrase)[ \t]+is:?[ \t]"
)
_PASSWORD_WORDS = word_set("password passwd pwd pass passphrase pw")
_SECRET_WORDS = _PASSWORD_WORDS | word_set("secret token key apikey credential credentials authorization auth cookie")

# A name that ends like this holds something about a secret, not the secret.
_ABOUT = word_set(
    """
    file path dir directory url uri endpoint name names id ids type types length len count limit usage expires
    expiry expiration at ttl field fields header headers prefix suffix format policy min max size tokens env var
    variable label placeholder regex pattern hint mode method provider strategy status version index position budget
    cost price text input kind class ref selector error errors message required enabled disabled rotation algorithm
    alg digest fingerprint exchange keys secrets passwords store manager vault reset form change confirm strength
    hasher generator validator helper time source
    """
)
_NO_SECRET = word_set(
    """
    public max min num total pad eos bos unk sep mask next page continuation cursor primary foreign sort partition
    cache idempotency row object stop special prompt completion input output tokenizer sort group composite
    translation i18n locale storage query react map dict hash starting
    """
)
# What makes a key one that has to be kept.
_KEPT_KEY = word_set(
    "access account admin api app client consumer crypt database db deploy encryption encrypt license master oauth"
    " priv private root service session sign signing ssh subscription webhook"
)
_NAME_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAME_BEFORE = re.compile(r"[\w.$-]{0,48}\Z", re.ASCII)
_OPERATOR = r"(?:[=>:]{0,2}[ \t]{0,8})"
_VALUE = re.compile(
    rf"{_OPERATOR}(?:[A-Za-z][\w.\[\]| ]{{0,30}}=[ \t]*(?=[\"'`]))?(?:[rbuf@](?=[\"'`]))?"
    r"(?:(?P<quote>\\*[\"'`])(?P<quoted>(?:(?!(?P=quote))\S){1,2048})(?:(?P=quote)|\Z)"
    r"|(?P<bare>[^\s\"'`,<>(){}\[\]|\\]+))",
    re.ASCII,
)
# Our own placeholders end in ">" as XML tags do.
_PLACEHOLDER = re.compile(r"[A-Z_]+_\d+")
_LONGEST_SECRET = 2048
_SPACE = re.compile(r"\s", re.ASCII)
_SCHEME = re.compile(r"(?i)(?:bearer|basic|token|apikey|digest)[ \t]+")
_CODE = re.compile(
    r"[A-Za-z_$][\w$]*(?:(?:\.|->|::|\?\.)[A-Za-z_$][\w$]*)+[!?;]?|[A-Za-z_$][\w$]*[!?]|.*[(\[{]|\w+\(.*\)"
)
# `hashlib.sha256(secret).hexdigest()`, `certs[0][2]`, and a call that goes on after a space.
_CALL = re.compile(r"(?P<called>[A-Za-z_$][\w$.:]*)(?:\(.*|\[[^\[\]]*\].*)")
_NUMBER = re.compile(r"\d+[.:]\d[\d.:]*")
# `getenv("API_KEY", "…")`, `"--api-key","…"`; in another list, a comma is no more than the next item.
_ARGUMENT = re.compile(r"\(\s*\\*[\"'`].\Z|-\Z", re.DOTALL)
_MEMBER_OR_CALL = re.compile(r"[A-Za-z_]\w*(?:\.[A-Za-z_]\w*)*(?:\.[A-Za-z_]\w*|\(.*\)?;?)")
_AFTER_SCHEME = re.compile(r"[^\s\"'`,<>\\]{1,2049}", re.ASCII)
_REST_OF_LINE = re.compile(r"[^\s\"'`\\]{1,2049}", re.ASCII)
_NEXT_STATEMENT = re.compile(r"[;&]")
# A shell's or an env file's assignment, maybe in a diff or after the line numbers that a tool adds.
_LINE_START = re.compile(
    r"(?:^|\n|\\n)[ \t]*(?:\d+(?:[:|\t-]|[\x80-\xff]+))?[ \t+-]*"
    r"(?:export[ \t]+|set[ \t]+|ENV[ \t]+|ARG[ \t]+|-e[ \t]+)?\Z"
)


def context_rules() -> Iterator[Rule]:
    """The rules of this file."""
    yield Rule(_NAMED, _named_values)
    yield Rule(r"://[^\s/?#@\"'<>]*@|://[^\s/?#@\"'<>:]*:[^\s@\"'<>]+@", _url_credentials)
    yield Rule(r"(?i:bearer|basic)[ \t]+[A-Za-z0-9._~+/=-]{8}", _authorization)
    yield Rule(r"auth\\*[\"'][ \t]*:[ \t]*\\*[\"'][A-Za-z0-9+/]{8}", _docker_logins)
    yield Rule(r"(?:[?&;]|u0026)(?:sig|X-(?:Amz|Goog)-Signature)=[A-Za-z0-9%+/_-]{20}", _url_signatures)
    yield Rule(r"(?i:mysql|mariadb|mongo|sshpass|redis-cli|login|curl|wget)[^\n]*[ \t]-[pauw]", _command_lines)


@lru_cache(4096)
def _kind_of(name: str) -> str | None:
    """The kind of secret that something of this name holds; None if it holds none."""
    words = [word.lower() for word in _NAME_WORDS.findall(name)]
    if not words or words[-1] in _ABOUT or not _NO_SECRET.isdisjoint(words):
        return None
    joined = "".join(words)
    if not _PASSWORD_WORDS.isdisjoint(words) or "password" in joined or "passphrase" in joined or "passwd" in joined:
        return PASSWORD
    # `key` alone is the key of a mapping.
    if words == ["key"]:
        return None
    said = _SECRET_WORDS.intersection(words)
    if said == {"key"} and _KEPT_KEY.isdisjoint(words) and not name.isupper():
        return _SOME_KEY if words[-1] == "key" else None
    return SECRET if said or "apikey" in joined or "secret" in joined else None


def secret_kind(name: str, value: str) -> str | None:
    """Return the kind of secret that a variable, key or option of this name holds, or None if the value is not one."""
    kind = _kind_of(name)
    return _reported(kind) if kind is not None and _is_secret(value, kind, literal=True) else None


def _reported(kind: str) -> str:
    return SECRET if kind == _SOME_KEY else kind


def _is_secret(value: str, kind: str, *, literal: bool) -> bool:
    """`literal`: quotes or the place say that the value is not code."""
    if not 6 <= len(value) <= _LONGEST_SECRET or _SPACE.search(value) or stands_for_a_secret(value):
        return False
    digits, letters = sum(map(str.isdigit, value)), sum(map(str.isalpha, value))
    symbols = len(value) - digits - letters
    # A path; but base64 has slashes too, and a password may begin with anything.
    path = value[0] in "/." or (value[0] == "~" and "/" in value)
    if path and not (len(value) in (40, 88) and digits and not is_identifier(value)):
        return False
    drawn = literal and len(value) >= 8 and not digits and mixes_case(value) and not _MEMBER_OR_CALL.fullmatch(value)
    if kind == PASSWORD:
        if not literal:
            mixed = len(value) >= 8 and digits > 0 and symbols > 0
            return mixed and not is_identifier(value) and not _CODE.fullmatch(value)
        if not letters:
            return digits >= 6 and not _NUMBER.fullmatch(value)
        if digits:
            return not is_words_and_number(value)
        mixed = not (value.islower() or value.isupper()) and symbols > value.count("-") + value.count("_")
        return drawn or (mixed and value[-1] not in ".!?:([{" and not _MEMBER_OR_CALL.fullmatch(value))
    if kind == _SOME_KEY:
        return len(value) >= 20 and digits >= 3 and letters >= 3 and not is_identifier(value) and value.isalnum()
    if literal and (drawn or _is_user_and_password(value)):
        return True
    if is_identifier(value) or _CODE.fullmatch(value):
        return False
    if literal:
        return len(value) >= 8 and digits >= 1 and letters >= 1
    return len(value) >= 16 and digits >= 2 and letters >= 2


def _named_values(text: str) -> Iterator[Finding]:
    blob_end = 0
    for match in _named_search().finditer(text.encode("latin-1")):
        start, end = match.span()
        if start < blob_end:
            continue
        separator = text[end - 1]
        before = _NAME_BEFORE.search(text, max(0, start - 48), start)
        name_start = before.start() if before else start
        name = text[name_start:end].rstrip("=:,> \t\"'`])\\")
        if separator in " \t":
            # Within a word, a dash begins no option: `git checkout -b fix/add-api-key main`.
            if text[start] == "-" and text[name_start] != "-":
                continue
            name = name.removesuffix(" is").split()[-1]
        kind = _kind_of(name)
        if kind is None or (separator == ">" and _PLACEHOLDER.fullmatch(name)):
            continue
        value = _VALUE.match(text, end)
        if value is None:
            continue
        if value["bare"] is not None and len(value["bare"]) > _LONGEST_SECRET:
            # Encoded data. Its end is looked for once, not again for every word in it.
            blob_end = value.end()
            continue
        if separator == "," and not _ARGUMENT.search(text, max(0, name_start - 8), name_start + 1):
            continue
        if value["quoted"] is not None:
            found = value.span("quoted")
            literal = separator not in ",>" or kind == SECRET
        else:
            # The next item of a list, a part of `arn:aws:secretsmanager:…:secret:…`
            if separator == "," or text[name_start - 1 : name_start] == separator == ":":
                continue
            # `grep PASSWORD= file`, a variable that is set to nothing
            if separator == "=" and text[end - 2] not in " \t" and text[end] in " \t":
                continue
            found, literal = _bare_value(text, name_start, end, value.span("bare"))
            if _is_code(text, *found):
                continue
            # A test's result, "in the first pass: …"
            is_password = literal and not name.isupper() and not value["bare"].isdigit()
            if name.lower() in ("pass", "pw") and separator == ":" and not is_password:
                continue
        scheme = _SCHEME.match(text, found[0])
        if scheme:  # `Authorization: Bearer …`, whose second word is the secret
            rest = _AFTER_SCHEME.match(text, scheme.end())
            if rest is None:
                continue
            found, literal = rest.span(), True
        if _is_secret(text[found[0] : found[1]], kind, literal=literal):
            yield Finding(*found, _reported(kind), by_context=True)


def _is_code(text: str, start: int, end: int) -> bool:
    """Whether the value without quotes is called or indexed."""
    call = _CALL.fullmatch(text, start, end)
    return text[end : end + 1] in ("(", "[") or (call is not None and is_identifier(call["called"]))


def _bare_value(text: str, name_start: int, value_start: int, found: tuple[int, int]) -> tuple[tuple[int, int], bool]:
    """The value without quotes, and whether the place says that it is a literal: a shell, an env, YAML or XML file."""
    start, end = found
    option = text[name_start] == "-" or text[value_start - 1] in " \t"
    line_begins = _LINE_START.search(text, max(0, name_start - 40), name_start) is not None
    if (line_begins or text.endswith("-e ", 0, name_start)) and text[value_start - 1 : start] == "==":
        start = value_start  # a password may begin with anything
    tight = text[value_start - 1] == "=" and start == value_start
    if tight and line_begins:
        # In an env file everything up to the end of the line belongs to the value.
        rest = _REST_OF_LINE.match(text, start)
        end = rest.end() if rest else end
    while end > start and (text[end - 1] in ";&," or (text[end - 1] == ")" and "(" not in text[start:end])):
        end -= 1
    if not tight or not line_begins:
        cut = _NEXT_STATEMENT.search(text, start, end)
        end = cut.start() if cut else end
    before = text[max(0, name_start - 8) : name_start].rstrip(" \t\n")[-1:]
    after = text[end : end + 1]
    argument = before in ("(", ",") or after in ("(", "[", ".", ")", ",")
    yaml = line_begins and text[value_start - 1] == ":" and text[value_start : value_start + 1] == " "
    yaml = yaml and (after in ("", "\n", "\r") or text[end : end + 2] in ("\\n", " #"))
    xml = text[value_start - 1] == ">" and text.startswith("</", end)
    return (start, end), (tight and not argument) or option or yaml or xml


_URL = re.compile(
    r"://(?P<user>[^\s:/?#@\"'<>`|\\]{0,200})(?::(?P<password>(?!\d{1,5}/)[^\s@\"'<>`\\]{1,500}))?@(?=[\w.\[-])",
    re.ASCII,
)


def _url_credentials(text: str) -> Iterator[Finding]:
    for match in _URL.finditer(text):
        password, user = match["password"], match["user"]
        if len(user) >= 20 and _is_secret(user, SECRET, literal=True):
            yield Finding(*match.span("user"), "URL_TOKEN", by_context=True)
        if not password or password in ("x-oauth-basic", user) or stands_for_a_secret(password) or "://" in password:
            continue
        # After a host and a colon comes a path: `https://git.io:org/repo@v1`.
        if "/" not in password or _is_secret(password, PASSWORD, literal=True):
            yield Finding(*match.span("password"), PASSWORD, by_context=True)


_AUTHORIZATION = re.compile(r"(?i)\b(?P<scheme>bearer|basic)[ \t]+(?P<value>[A-Za-z0-9._~+/=-]{8,})")


def _authorization(text: str) -> Iterator[Finding]:
    for match in _AUTHORIZATION.finditer(text):
        value = match["value"].rstrip(".")
        if match["scheme"].lower() == "basic":
            accepted = _is_user_and_password(value)
        else:
            accepted = len(value) >= 12 and _is_secret(value, SECRET, literal=True)
        if accepted:
            yield Finding(match.start("value"), match.start("value") + len(value), "AUTHORIZATION", by_context=True)


def _is_user_and_password(value: str) -> bool:
    try:
        decoded = base64.b64decode(value, validate=True).decode("utf-8")
    except (binascii.Error, ValueError):  # not base64, not ASCII, not UTF-8
        return False
    return ":" in decoded and decoded.isprintable()


# `{"auths": {"registry": {"auth": "…"}}}`
_DOCKER_LOGIN = re.compile(r"\bauth\\*[\"'][ \t]*:[ \t]*\\*[\"'](?P<value>[A-Za-z0-9+/]{8,2048}={0,2})\\*[\"']")


def _docker_logins(text: str) -> Iterator[Finding]:
    for match in _DOCKER_LOGIN.finditer(text):
        if _is_user_and_password(match["value"]):
            yield Finding(*match.span("value"), "AUTHORIZATION", by_context=True)


_URL_SIGNATURE = re.compile(
    r"(?:[?&;]|u0026)(?:sig|X-(?:Amz|Goog)-Signature)=(?P<value>[A-Za-z0-9%+/_-]{20,2048}={0,2})"
)


def _url_signatures(text: str) -> Iterator[Finding]:
    for match in _URL_SIGNATURE.finditer(text):
        # Words have no digits. A signature has, and may have a row of one letter that would look like a mask.
        if len(set(match["value"])) >= 12 and any(map(str.isdigit, match["value"])):
            yield Finding(*match.span("value"), "URL_SIGNATURE", by_context=True)


_COMMAND_LINES = (
    re.compile(
        r"(?:mysql\w*|mariadb[\w-]*|mongo\w*|sshpass|redis-cli"
        r"|(?:docker|podman|helm|oc|az|twine|npm|ftp)[ \t][a-z \t]{0,40}login)\b"
        r"[^\n|;]{0,300}?[ \t]-[paw][ \t=]*[\"']?(?P<value>[^\s\"'`]+)",
        re.ASCII,
    ),
    re.compile(
        r"(?:curl|wget)\b[^\n|;]{0,400}?[ \t](?:-u|--user)[ \t=]*[\"']?[^\s:\"']+:(?P<value>[^\s\"'`]+)", re.ASCII
    ),
)


def _command_lines(text: str) -> Iterator[Finding]:
    for pattern in _COMMAND_LINES:
        for match in pattern.finditer(text):
            if _is_secret(match["value"], PASSWORD, literal=True):
                yield Finding(*match.span("value"), PASSWORD, by_context=True)


@cache
def _named_search() -> Any:
    options = re2.Options()
    options.encoding = re2.Options.Encoding.LATIN1
    return re2.compile(_NAMED.encode("latin-1"), options)
