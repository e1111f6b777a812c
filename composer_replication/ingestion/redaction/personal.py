"""Personal data: mail addresses, user names in home directories, and logins that appear without one."""

from __future__ import annotations

import re
import string
from collections.abc import Iterable, Iterator

from composer_replication.coding_tools import word_set
from composer_replication.ingestion.redaction.finding import Finding, Known, KnownSecrets, Rule

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
# A path does not follow a name: `src/home/index.ts` is somebody's source. Options and escapes end in a letter.
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


# Names, of people and machines, that are also words, tools or somebody in an example. They reveal little, and replacing
# them everywhere would change what code and prose say. Of the rest, what code uses as a name is found out.
_ORDINARY = word_set(
    """
    adam agent albert alice alpha amber angel april archer aria arrow aspen atlas august aurora autumn ava azure
    backup baker bash basil bear bert beta bill bishop blade blake blaze blog blue bob bolt bond brave brew brick
    bridge brook brooks brown bruno buck buddy build builder burn byte caddy candy carol case cash cassandra chance
    chandler charity charlie charm chase chat cherry chess chip christian chuck cipher clay client cliff cloud
    clover code coder coding cody colt computer cook cooper coral core corp cosmo craft crew crystal curry cyan
    daisy dale dart dash dave dawn dean delta demo desktop destiny devin devops diamond django dolly dove drake
    dream drew duke dusty eagle earl east echo eden edge elder email ember emerald epic eve faith falcon family fern
    field fisher flash fleet flora forest foster frame frank fred free fuller gale game games garden gates gene
    general genesis ghost ginger glen glory gold golden grace gradle grant gray green grey group grove hacker hale
    hall harbor hardy harmony harper haven hawk hazel heart heath heather hector helm hero hill holly home honey
    hood hope host house hub hudson hugo hunt hunter infra iris iron items ivory jack jade jane janedoe jasmine
    jasper java jazz jdoe jean jest jewel jill john johndoe journey jsmith judge julia july june juniper jupiter
    justice karma kelvin king kite knight kong lab labs lake lambda lance land lane laptop lark laser laurel lead
    leaf legend level liberty light lily lime link lion lisp local loki london long lotus love lucky luna lynx
    macbook machine magic mail major maker manager mango maple marble march mark mars marsh marvel mason master
    matrix maverick meadow media melody mercury mercy merge merlin merry message messages micro miles mill miller
    mini mint miracle mistral misty mobile mocha mode monk monkey moon moose moss mountain music native nest nick
    night noble norm north nova novel ocean office olive olympia omega onyx opal open orange orchid orders orion
    oscar otter owner pace page panda pandora paris park parker pascal patience peace pearl penny pepper personal
    phoenix photo pierce pilot pine ping piper pirate pixel platform poet pond pope poppy porter posts power prince
    prod product production products promise puck quest quill rabbit rain rainbow ranger raven reed reef release
    remix remote reports research rich ridge river rivers robin robot rock rocket rocky rogue roman romeo root rose
    rosetta royal ruby rune runner rush rust rusty sable sage sailor saint salt sand sandbox sandy sass savage scala
    scarlet scout sequoia serenity server shadow shark shell shine shop shore sierra sigma silver site slate smith
    snow solo sonic spark sparrow speed spike spirit spring staff stage staging star stark station steel stone store
    storm stream strong summer sunny super support swift system tango tanner teal team temp temple tempo terra tesla
    test tester tests texas thor thorn tide tiger titan tower trace tree trinity troy true trust turner twin unity
    user users valentine valor vector vega velvet venus victor video violet viper vista vivid vulcan wade walker
    wall ward warden water wave weaver west white widgets wild will willow wind winter wise wolf wonder wood woods
    woody work workstation worth young zero zone
    """
)
_SHORTEST = 4
# `build-agent`, `mark2`
_BREAK = re.compile(r"\d*(?:[^a-z0-9]+|\Z)")

# The surroundings of a login that other words hardly ever have: temporary folders of pytest, remotes, variables,
# accounts, the columns of `ls -l`; hosts, the columns of `ps`, `who` and `lsof`, what `git commit` says.
_BEFORE_A_LOGIN = re.compile(
    r"""(?x)
    (?: pytest-of- | (?:^|[\s"'`=:(])~ | (?:github|gitlab|bitbucket)\.(?:com|org)[/:]
      | \b(?:USER|USERNAME|LOGNAME)=["']? | [ug]id=\d+\( | ,\d+\(
      | \bchown[ ](?:-\w+[ ])* | \bsudo[ ]-u[ ] | \bsu[ ](?:-[ ])?
      | [-dlbcps][-rwxsStT]{9}[@+.]?[ ]+(?:\d+[ ]+)?(?:[\w.-]+[ ]+)?
    )\Z"""
)
_AFTER_A_LOGIN = re.compile(
    r"""(?x)
    @ (?: (?!v?\d|latest\b|next\b|beta\b|workspace\b)[A-Za-z] | \d+\.\d+\.\d+\.\d+ )
    | [ ]+\d+[ ]+\d+\.\d[ ]+\d+\.\d | [ ]+(?:console|ttys?\d+|pts/\d+|cwd|txt|\d+[urw])[ ]
    | /[\w./-]+[ ](?:\(root-commit\)[ ])?[0-9a-f]{7,12}\]
    """
)
# A value, if it ends here; a branch, if it goes on.
_FIELD_BEFORE = re.compile(r"\b(?:[Uu]ser(?:name)?|[Ll]ogin|[Oo]wner|[Aa]uthor)\\?[\"']?[ ]?[:=][ ]?\\?[\"']?\Z")
_FIELD_AFTER = re.compile(r"\\?[\"',;<]|[ ]<|\s*(?:\n|\\n|\Z)")
_BRANCH_BEFORE = re.compile(
    r"(?:refs/heads/|\borigin[/ ]|\bHEAD:|--head[ =]|\b(?:[Bb]ranch|headRefName)\\?[\"']?:?[ ]?\\?[\"']?"
    r"|\bgit (?:checkout|switch|branch|merge|rebase)(?: -\w+)? )\Z"
)

# Where code uses a name.
_BEFORE_CODE = re.compile(
    r"(?:\b(?:import|def|func|fn|const|var|package|mod|struct) (?:\w+_)?|(?:from |require\()[\"']|\s--|\$\{?)\Z"
)
_AFTER_CODE = re.compile(r"(?:_\w+)?(?:(?:\.\w+)?\(| ?:?= ?[^\s=>])| import ")


def munged(name: str) -> str:
    """A name as Claude Code's folder names have it, with a dash for every other character."""
    return re.sub(r"[^A-Za-z0-9]", "-", name)


class Logins:
    """Logins to be found everywhere; those that are ordinary words, only in the place of a login."""

    def __init__(self) -> None:
        self._known = KnownSecrets()
        # By its name, whether a login is replaced everywhere; None once code has used it as a name.
        self.anywhere: dict[str, bool | None] = {}

    def add(self, login: str, kind: str, placeholder: str, *, certain: bool) -> bool:
        """Know this one from now on; whether that is new. `certain`: only a home directory can have revealed it."""
        if len(login) < 2:
            return False
        is_new = False
        for name in (login, login.lower(), munged(login)):
            anywhere = certain and _is_distinctive(name)
            if name not in self.anywhere or (anywhere and self.anywhere[name] is False):
                self._known.add(name, kind, placeholder)
                self.anywhere[name] = anywhere
                is_new = True
        return is_new

    def seen_in(self, text: str) -> bool:
        """Whether there is one in the text; learns what code uses as a name."""
        seen = False
        for start, known in self._known.find(text):
            end = start + len(known.secret)
            if self.anywhere[known.secret] and _is_code(text, start, end):
                self.anywhere[known.secret] = None
            seen = seen or bool(self.anywhere[known.secret]) or _is_login(text, start, end)
        return seen

    def find(self, text: str) -> Iterator[tuple[int, Known]]:
        """Yield their places, in order and without overlap."""
        for start, known in self._known.find(text):
            if self.anywhere[known.secret] or _is_login(text, start, start + len(known.secret)):
                yield start, known


def _is_distinctive(name: str) -> bool:
    return len(name) >= _SHORTEST and not _ORDINARY.issuperset(filter(None, _BREAK.split(name.lower())))


def _is_login(text: str, start: int, end: int) -> bool:
    before = max(0, start - 64), start
    if _AFTER_A_LOGIN.match(text, end) or _BEFORE_A_LOGIN.search(text, *before):
        return True
    if text[end : end + 1] == "/":
        return _BRANCH_BEFORE.search(text, *before) is not None
    return _FIELD_AFTER.match(text, end) is not None and _FIELD_BEFORE.search(text, *before) is not None


def _is_code(text: str, start: int, end: int) -> bool:
    return bool(_AFTER_CODE.match(text, end) or _BEFORE_CODE.search(text, max(0, start - 64), start))
