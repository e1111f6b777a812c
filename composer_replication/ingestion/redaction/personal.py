"""Personal data: mail addresses, and the user names in home directories."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator

from composer_replication.ingestion.redaction.finding import Finding, Rule, word_set

EMAIL = "EMAIL"
HOME_USER = "HOME_USER"

# Addresses that belong to nobody: names reserved for documentation (RFC 2606; the other reserved ones are no domain
# that people have mail under) or used for nothing else, remotes of repositories, robots. A short list: most words are
# also somebody's domain.
_NOBODY = re.compile(
    r"""(?ix)
    (?:git|hg|svn) @ .* | [\w.+-]* no[._-]?reply [\w.+-]* @ .* | do[._-]?not[._-]?reply @ .*
    | .* @ (?:.*\.)? (?:example (?:\.[a-z]{2,24}){1,2} | test | invalid | example | localhost)
    | .* @ (?:test|foo|bar|baz|domain) \. (?:com|org|net|io|dev) | [a-z] @ [a-z] \. [a-z]+
    | (?:claude @ anthropic | openhands @ all-hands | cursoragent @ cursor | (?:github-)?actions? @ github) \. [a-z]+
    """
)

# Top-level domains people have mail under. A list, because `x@self.weight` and `getty@tty1.service` are no addresses.
_DOMAINS = word_set(
    """
    com org net edu gov mil int info biz name pro dev app io ai co me tv cloud tech xyz online site email agency
    digital studio design software systems solutions network team work works world today live life group company
    consulting services academy school university health space store shop blog news media social chat page wiki
    codes foundation ventures capital finance bank legal global international africa asia berlin london nyc tokyo
    eus cat coop museum
    """
)
# Two letters are a country, unless they are a file's ending.
_FILE_ENDINGS = word_set("py js ts md rs sh go rb cc pl so db gz")

_LOCAL_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._%+-]{0,63}\Z")
_DOMAIN = re.compile(
    r"[A-Za-z0-9](?:[A-Za-z0-9-]{0,62}\.)(?:[A-Za-z0-9-]{1,63}\.){0,4}(?P<top>[A-Za-z]{2,24})"
    r"(?![A-Za-z0-9_-]|\.[A-Za-z0-9]|:[\w~/])"
)
# A URL, a handle, a variable.
_NO_ADDRESS_AFTER = re.compile(r"(?:[/@$]|://[^\s/@:]*:)\Z")
_NO_DOMAIN = re.compile(r"v?\d+(?:\.\d+)+|\dx\.|(?:self|cls|this|np|torch)\.")

# One character class in front and no branches before it: that is what makes Python's search fast.
_HOME = re.compile(
    r"[/\\-](?P<root>home|[Uu]sers)(?P<separator>[/\\]+|-)"
    r"(?P<name>[A-Za-z_\x80-\xff][A-Za-z0-9._\x80-\xff-]{0,63}(?: [A-Z][A-Za-z0-9._\x80-\xff-]{0,63}(?=[\\/]))?)"
)
_NO_USER = word_set(
    """
    shared public default all runner runneradmin ubuntu debian user users username node vscode dev developer daytona
    root admin administrator app appuser coder codespace codespaces gitpod jovyan sandbox agent claude openhands
    docker ec2-user vagrant circleci travis jenkins build builder container containeruser containeradministrator
    linuxbrewer linuxbrew git you me name your-name yourname your_name youruser your-user your_username
    your-username yourusername myuser my-user someone somebody foo bar baz test testuser test_user test-user tester
    example guest student deploy www www-data nobody somebody-else python airflow spark hadoop conda mambauser
    nonroot worker service postgres mysql redis nginx oracle pi workspace project projects src home lib bin share
    local page pages about index dashboard login settings profile components main app.tsx feed news search list
    create new edit register signup signin logout account overview data dist staging static assets images templates
    dir file folder path repo some node_modules nodejs nextjs tmp jupyter pwuser seluser elasticsearch rails frappe odoo
    """
)
_PLACEHOLDER_NAME = re.compile(r"user\d+")
_FILE_NAME = re.compile(
    r".*\.(?:html?|[jt]sx?|vue|svelte|css|scss|py|go|rs|rb|php|md|json|ya?ml|java|kt|swift|tmpl|hbs)"
)
# Before a path stands no name: `src/home/index.ts` is somebody's source. Options and escapes end in a letter.
_WITHIN_A_NAME = re.compile(r"[\w.)}\]~-]", re.ASCII)
_BEFORE_A_PATH = re.compile(
    r"(?:^|[^\w-])-[A-Za-z]\Z|\\[nrt]\Z"
    r"|(?:^|[^\w])(?:[A-Za-z]:|/mnt/[a-z]|/[a-z]|/host|/hostfs|/var|/usr|/export|/System/Volumes/Data)\Z",
    re.ASCII,
)
_IN_A_HOME = re.compile(r"/(?:\.[a-z]|(?:Desktop|Documents|Downloads|[Pp]rojects|code|dev|git|go|repos|src|work)/)")
_END = re.compile(r"\s*\Z")
# Elsewhere, `/users/search` is a route.
_DRIVE = re.compile(r"(?:^|[^\w])(?:[A-Za-z]:|/mnt/[a-z]|/[cd])\Z", re.ASCII)
# `C--Users-alice-app`, `-mnt-c-Users-alice-app`
_BEFORE_A_FOLDER = re.compile(r"(?:^|[^\w-])(?:[A-Z]-|-mnt-[a-z])\Z", re.ASCII)


def personal_rules() -> Iterator[Rule]:
    """The rules of this file."""
    yield Rule(r"[A-Za-z0-9_+%-]@[A-Za-z0-9-]+\.[A-Za-z0-9]", _mail_addresses)
    yield Rule(rf"[\\/-](?:home|[Uu]sers)(?:[\\/]+|-){_other_name(_NO_USER)}", _home_directories)


def _other_name(words: Iterable[str], read: str = "") -> str:
    """A gate for names that are none of these words, and no `user` with a number, which is a placeholder.

    RE2 cannot look ahead, so the words are a tree, and the gate opens where a name leaves it. The paths of a sandbox,
    which is nobody's home, then cost the one pass and no more. `read` is the name up to here.
    """
    longer = [word for word in words if len(word) > len(read)]
    following = sorted({word[len(read)] for word in longer})
    if read and read not in words:
        leaves = rf"[^{re.escape(''.join(following))}]|\z"
    else:
        begins = {*string.ascii_letters, "_"}
        goes_on = begins | set("0123456789.- ") if read else begins  # a second name may follow a space
        # `user7` is a placeholder, `user7bob` is a name.
        digits = set(string.digits) if read == "user" else set()
        leaves = rf"[{re.escape(''.join(sorted(goes_on - set(following) - digits)))}\x80-\xff]"
        if digits:
            leaves += rf"|[0-9]+[{re.escape(''.join(sorted(goes_on - digits)))}\x80-\xff]"
    within = [
        re.escape(letter) + _other_name([word for word in longer if word.startswith(read + letter)], read + letter)
        for letter in following
    ]
    return f"(?:{'|'.join([leaves, *within])})"


def _mail_addresses(text: str) -> Iterator[Finding]:
    # From one @ to the next: a pattern that begins with a local part would be tried at every letter.
    at = text.find("@")
    while at != -1:
        local = _LOCAL_PART.search(text, max(0, at - 64), at)
        domain = _DOMAIN.match(text, at + 1)
        if local and domain:
            start = local.start()
            if text[start - 1 : start] == "\\" and text[start] in "nrt" and start + 1 < at:
                start += 1  # the letter is the escape's
            elsewhere = _NO_ADDRESS_AFTER.search(text, max(0, start - 64), start)
            if not elsewhere and _is_address(text[start : domain.end()], domain["top"].lower()):
                yield Finding(start, domain.end(), EMAIL)
        at = text.find("@", at + 1)


def _is_address(address: str, top: str) -> bool:
    if top not in _DOMAINS and (len(top) != 2 or top in _FILE_ENDINGS):
        return False
    if _NO_DOMAIN.match(address, address.index("@") + 1):
        return False
    return _NOBODY.fullmatch(address) is None


def _home_directories(text: str) -> Iterator[Finding]:
    for match in _HOME.finditer(text):
        name = match["name"]
        if not is_somebody(name.rstrip(".")):
            continue
        start, before = match.start("name"), text[max(0, match.start() - 24) : match.start()]
        if (text[match.start()] == "-") != (match["separator"] == "-"):
            continue
        if match["root"] == "users" and not _DRIVE.search(before):
            continue
        if match["separator"] == "-":
            # Not knowing the name, take it to end at the first dash; the redactor knows better if it has met the name.
            name = name.partition("-")[0]
            folder = before[-1:] in ("", "/", "\n", "\\") or (match["root"] == "Users" and not before[-1:].isalnum())
            folder = (folder and before[-1:] != "-") or _BEFORE_A_FOLDER.search(before) is not None
            if not folder or not is_somebody(name):
                continue
        elif text[match.start()] == "/" and _WITHIN_A_NAME.match(before[-1:]) and not _BEFORE_A_PATH.search(before):
            continue
        end = start + len(name.rstrip("."))
        yield Finding(start, end, HOME_USER, by_context=_is_certain(text, match, end))


def _is_certain(text: str, match: re.Match[str], end: int) -> bool:
    """Whether this can only be a home directory: `/home/widgets` may also be a route of somebody's code."""
    if match["separator"] == "-":
        return text[match.start() - 1 : match.start()] in ("", "/", "\\")
    if text[end : end + 1] not in ("/", "\\"):
        return match.start() == 0 and _END.match(text, end) is not None
    if (
        match.start() == 0
        or "\\" in match["separator"]
        or _DRIVE.search(text, max(0, match.start() - 6), match.start())
    ):
        return True
    return match["name"][0].islower() if match["root"] == "Users" else _IN_A_HOME.match(text, end) is not None


def is_somebody(name: str) -> bool:
    """Whether a home directory of this name is a person's."""
    return not (
        name.lower() in _NO_USER or name.isupper() or _PLACEHOLDER_NAME.fullmatch(name) or _FILE_NAME.fullmatch(name)
    )
