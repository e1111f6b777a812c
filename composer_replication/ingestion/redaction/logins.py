"""Logins that home directories reveal, where they stand without one."""

from __future__ import annotations

import re
from collections.abc import Iterator

from composer_replication.ingestion.redaction.finding import word_set
from composer_replication.ingestion.redaction.known import Known, KnownSecrets

# Names, of people and machines, that are also words, tools or somebody in an example. They reveal little, and replacing
# them wherever they stand would change what code and prose say. Of the rest, what code uses as a name is found out.
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

# What stands around a login and hardly ever around another word: temporary folders of pytest, remotes, variables,
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
    """A name as it stands in Claude Code's folder names, which have a dash for everything else."""
    return re.sub(r"[^A-Za-z0-9]", "-", name)


class Logins:
    """Logins to be found again wherever they stand; those that are ordinary words, where they stand as a login."""

    def __init__(self) -> None:
        self._known = KnownSecrets()
        # By its name, whether a login is taken for one wherever it stands; None once code has used it as a name.
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
        """Where they stand, in order and apart."""
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
