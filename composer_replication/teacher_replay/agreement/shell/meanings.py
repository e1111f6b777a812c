"""Commands that say the same in other words: two names of one command, options that imply each other, defaults."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from composer_replication.coding_tools import word_set
from composer_replication.teacher_replay.agreement.shell.commands import UNKNOWN, commands

_SIGNALS = {"HUP": "1", "INT": "2", "KILL": "9", "TERM": "15"}
_SHORT_NAMES = {
    "npm i": "npm install",
    "npm list": "npm ls",
    "npm un": "npm uninstall",
    "pnpm i": "pnpm install",
    "cargo t": "cargo test",
    "cargo b": "cargo build",
    "cargo c": "cargo check",
    "docker container ls": "docker ps",
    "docker images": "docker image ls",
    "./gradlew": "gradle",
    "./mvnw": "mvn",
}
# What npm, yarn and pnpm run by the name of the script alone.
_NPM_SCRIPTS = {"test": "test", "t": "test", "start": "start"}
_YARN_OWN = word_set(
    "add audit cache config create dlx exec global import info init install link list login node outdated pack publish "
    "remove run set unlink up upgrade version versions why workspace workspaces i rebuild prune store patch deploy "
    "fetch env"
)
_LETTERS = re.compile(r"[A-Za-z]+")
_SENDS = ("-d", "--data-binary", "-F", "--data-urlencode", "--json")
_KUBERNETES_KINDS = {"po": "pods", "pod": "pods", "svc": "services", "deploy": "deployments", "ns": "namespaces"}
_SUBSTITUTION = re.compile(r"s([^\w\s\\])(.*)\1([gimI0-9]*)", re.DOTALL)
_TELL_THEIR_VERSION = (
    "python", "node", "npm", "git", "php", "yarn", "ruby", "pnpm", "deno", "bun", "java", "rustc", "cargo",
)  # fmt: skip


def usual_words(name: str, arguments: list[str]) -> tuple[str, list[str]]:
    """A command's usual name and the arguments that go with it."""
    if name in ("docker container", "docker image") and arguments:
        whole = f"{name} {arguments[0]}"
        short = f"docker {arguments[0]}" if name == "docker container" else whole
        return _SHORT_NAMES.get(whole, short), arguments[1:]
    program, _, sub = name.partition(" ")
    if program in ("npm", "pnpm") and sub in _NPM_SCRIPTS:
        return f"{program} run", [_NPM_SCRIPTS[sub], *arguments]
    if program == "yarn" and not arguments and not sub:
        return "yarn install", arguments
    if program in ("yarn", "pnpm") and sub and sub not in _YARN_OWN and not sub.startswith("-"):
        return f"{program} run", [sub, *arguments]
    if name == "git version":
        return "git", ["--version"]
    if name == "npm exec":
        return "npx", [word for word in arguments if word != "--"]
    if name == "git checkout" and arguments[:1] == ["--"]:
        return "git restore", arguments[1:]
    if name == "kill":
        return name, _kill_arguments(arguments)
    if name in ("tar", "ps") and arguments and _LETTERS.fullmatch(arguments[0]):
        return name, [f"-{arguments[0]}", *arguments[1:]]
    if name == "chmod":
        return name, [re.sub(r"^0+(?=[0-7]{3}$)", "", word) for word in arguments]
    if name in ("command", "type") and arguments and (name == "type" or arguments[0] in ("-v", "-V")):
        return "which", [word for word in arguments if not word.startswith("-")]
    if name == "sed":
        # An empty suffix for the copy, as other seds want it.
        return name, [word for word in arguments if word]
    return _SHORT_NAMES.get(name, name), arguments


def _kill_arguments(arguments: list[str]) -> list[str]:
    """Signals by number; 15 is what `kill` sends unless told."""
    words = list(arguments)
    if words and (found := re.fullmatch(r"-(?:SIG)?([A-Z0-9]+)", words[0])) is not None:
        number = _SIGNALS.get(found[1], found[1])
        words[:1] = [] if number == "15" else [f"-s{number}"]
    return words


if TYPE_CHECKING:
    from composer_replication.teacher_replay.agreement.shell.lines import Line


def usual_line(line: Line) -> Line:
    """The line in the words that stand for all its equals."""
    if line.name.startswith("git "):
        shown = [value for value in line.values("-c") if value.startswith(("color.", "core.pager", "advice."))]
        line = replace(line, options=tuple(one for one in line.options if one[0] != "-c" or one[1] not in shown))
    rule = RULES.get(line.name) or RULES.get(line.name.partition(" ")[0])
    return line if rule is None else rule(line)


def _by_name(options: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    """Options in the order of their names; several of one name keep theirs, which may matter."""
    return tuple(sorted(options, key=lambda option: option[0]))


def _renamed(line: Line, name: str, options: tuple[tuple[str, str], ...], operands: tuple[str, ...]) -> Line:
    return replace(line, name=name, options=options, operands=operands, command=commands().get(name, UNKNOWN))


def _git_revisions(line: Line) -> Line:
    operands = tuple(map(_revision, line.operands))
    return replace(line, operands=() if operands == ("HEAD",) and line.name != "git diff" else operands)


def _revision(operand: str) -> str:
    return re.sub(r"^@(?=$|[~^])", "HEAD", re.sub(r"\^(?=$|[~^.])", "~1", operand)).replace("HEAD~1~1", "HEAD~2")


def _git_branch(line: Line) -> Line:
    if line.option("-D") is not None:
        return replace(line, options=tuple(sorted({*line.without("-D").options, ("-d", ""), ("-f", "")})))
    return line if line.operands else line.without("--list")


def _git_rev_parse(line: Line) -> Line:
    if line.option("--abbrev-ref") is not None and line.operands == ("HEAD",):
        return _renamed(line, "git branch", (("--show-current", ""),), ())
    return line


def _git_switch(line: Line) -> Line:
    """`git switch` in the words of `git checkout`."""
    names = {"-c": "-b", "-C": "-B"}
    options = tuple(sorted((names.get(option, option), value) for option, value in line.options))
    return _renamed(line, "git checkout", options, line.operands)


def _git_reset(line: Line) -> Line:
    """`git reset [HEAD] FILE` takes a file back from the index, as `git restore --staged FILE` does."""
    if line.options in ((), (("--mixed", ""),)):
        files = tuple(operand for operand in line.operands if operand != "HEAD")
        if files and all(re.search(r"[./]", name) and "~" not in name and "^" not in name for name in files):
            return _renamed(line, "git restore", (("-S", ""),), files)
        return replace(line, options=(), operands=tuple(map(_revision, files)))
    return replace(line, operands=tuple(_revision(operand) for operand in line.operands if operand != "HEAD"))


def _git_stash(line: Line) -> Line:
    line = replace(line, operands=tuple(operand for operand in line.operands if operand != "stash@{0}"))
    if line.operands[:1] in (("push",), ("save",)):
        message = line.operands[1:] if line.operands[0] == "save" else ()
        options = (*line.options, *(("-m", text) for text in message))
        return replace(line, options=_by_name(options), operands=line.operands[1:] if not message else ())
    return line


def _pytest(line: Line) -> Line:
    if line.option("--maxfail") == "1":
        line = replace(line.without("--maxfail"), options=(*line.without("--maxfail").options, ("-x", "")))
    silent = (("-p", "no:cacheprovider"), ("-p", "no:warnings"))
    # Warnings that become errors decide which tests pass; any other filter only shows more or less of them.
    options = tuple(
        (name, value)
        for name, value in line.options
        if (name, value) not in silent and (name != "-W" or value.startswith("error"))
    )
    return replace(line, options=_by_name(dict.fromkeys(options)))


def _curl(line: Line) -> Line:
    """A request with its method only where it is not implied, and its data and headers in one spelling."""
    options = []
    for name, value in line.without("-X").options:
        if name in _SENDS:
            value = json_form(value)
        elif name == "-H":
            header, colon, content = value.partition(":")
            value = f"{header.lower()}{colon}{content.strip()}"
        options.append((name, value))
    given = {name for name, _ in options}
    implied = "HEAD" if "-I" in given else "POST" if given & set(_SENDS) and "-G" not in given else "GET"
    method = (line.option("-X") or implied).upper()
    if method != implied:
        options.append(("-X", method))
    operands = tuple(operand.rstrip("/") if operand.count("/") <= 3 else operand for operand in line.operands)
    # The order of headers says nothing, that of the fields of a form may.
    headers = sorted(option for option in options if option[0] == "-H")
    others = [option for option in options if option[0] != "-H"]
    return replace(line, options=_by_name([*headers, *others]), operands=operands)


def _tar(line: Line) -> Line:
    # What packed an archive is seen from it when it is unpacked.
    return line.without("-z", "-j", "-J") if line.option("-x") is not None or line.option("-t") is not None else line


def _sed(line: Line) -> Line:
    """The script as an operand, its delimiter a slash where that reads the same."""
    scripts = line.values("-e")
    operands = (";".join(scripts), *line.operands) if scripts else line.operands
    if not operands:
        return line
    script = operands[0]
    found = _SUBSTITUTION.fullmatch(script)
    if found is not None and found[1] != "/" and "/" not in found[2] and found[2].count(found[1]) == 1:
        script = f"s/{found[2].replace(found[1], '/')}/{found[3]}"
    return replace(line.without("-e"), operands=(script, *operands[1:]))


def _awk(line: Line) -> Line:
    """The program in one spelling, after its field separator."""
    operands = list(line.operands)
    options: tuple[tuple[str, str], ...] = ()
    if operands and operands[0].startswith("-F"):
        flag = operands.pop(0)
        options = (("-F", flag[2:] or (operands.pop(0) if operands else "")),)
    if not operands or operands[0].startswith("-"):
        return line
    # Quoted text and patterns stay as they are.
    parts = re.split(r"(\"(?:\\.|[^\"\\])*\"|(?:^|(?<=~)|(?<=~ ))/(?:\\.|[^/\\])+/)", operands[0].strip())
    program = "".join(
        part if place % 2 else re.sub(r"\s*([{}();,])\s*", r"\1", re.sub(r"\s+", " ", part))
        for place, part in enumerate(parts)
    )
    return replace(line, name="awk", options=options, operands=(program, *operands[1:]))


def _systemctl(line: Line) -> Line:
    return replace(line, operands=tuple(operand.removesuffix(".service") for operand in line.operands))


def _sql(line: Line) -> Line:
    options = tuple((name, sql_form(value) if name in ("-c", "-e") else value) for name, value in line.options)
    operands = tuple(sql_form(word) if " " in word else word for word in line.operands)
    return replace(line, options=options, operands=operands)


def _go(line: Line) -> Line:
    means_here = not line.operands and line.name in ("go test", "go build", "go vet")
    return replace(line, operands=(".",)) if means_here else line


def _cargo(line: Line) -> Line:
    return replace(line, operands=tuple(word for word in line.operands if word != "--nocapture"))


def version_form(line: Line) -> Line:
    """The program's version, however it is asked for."""
    asked = (line.options, line.operands)
    if asked in (((("-V", ""),), ()), ((("--version", ""),), ()), ((("-v", ""),), ()), ((("-version", ""),), ())):
        return replace(line, options=(("--version", ""),))
    return line


def _kubectl(line: Line) -> Line:
    first, *rest = line.operands or ("",)
    if first in ("get", "describe", "delete", "logs") and rest:
        rest = [*rest[0].split("/", 1), *rest[1:]]
        return replace(line, operands=(first, _KUBERNETES_KINDS.get(rest[0], rest[0]), *rest[1:]))
    return line


def _docker(line: Line) -> Line:
    """Variables, volumes and ports in any order."""
    return version_form(replace(line, options=tuple(sorted(line.options))))


def _make(line: Line) -> Line:
    """Variables may stand anywhere."""
    given = sorted(operand for operand in line.operands if "=" in operand)
    return replace(line, operands=(*given, *(operand for operand in line.operands if "=" not in operand)))


def _ps(line: Line) -> Line:
    """All processes, in the words of either of its two dialects."""
    letters = {option.lstrip("-") for option, _ in line.options}
    is_all = letters in ({"a", "u", "x"}, {"e", "f"}, {"e"}, {"A"}, {"a", "x"}, {"e", "F"})
    return replace(line, options=(("-e", ""),)) if is_all and not line.operands else line


def _echo(line: Line) -> Line:
    return replace(line, name="pwd", operands=()) if line.operands == ("\0${PWD}",) else line


def _printenv(line: Line) -> Line:
    if len(line.operands) == 1 and not line.options:
        return replace(line, name="echo", operands=(f"\0${{{line.operands[0]}}}",))
    return line


def _chmod(line: Line) -> Line:
    mode, *files = line.operands or ("",)
    return replace(line, operands=(f"a{mode}" if mode.startswith("+") else mode, *files))


def _wget(line: Line) -> Line:
    """`wget` in the words of `curl`."""
    if any(option not in ("-O",) for option, _ in line.options):
        return line
    target = line.option("-O")
    saved = (("-O", ""),) if target is None else () if target == "-" else (("-o", target),)
    return _curl(_renamed(line, "curl", tuple(sorted((("-L", ""), *saved))), line.operands))


def _identity(line: Line) -> Line:
    return replace(line, name="whoami", options=()) if line.options == (("-nu", ""),) else line


RULES: dict[str, Callable[[Line], Line]] = {
    "git log": _git_revisions,
    "git diff": _git_revisions,
    "git show": _git_revisions,
    "git branch": _git_branch,
    "git rev-parse": _git_rev_parse,
    "git switch": _git_switch,
    "git reset": _git_reset,
    "git stash": _git_stash,
    "pytest": _pytest,
    "curl": _curl,
    "tar": _tar,
    "sed": _sed,
    "awk": _awk,
    "systemctl": _systemctl,
    "psql": _sql,
    "sqlite3": _sql,
    "go": _go,
    "cargo test": _cargo,
    **dict.fromkeys(_TELL_THEIR_VERSION, version_form),
    "docker": _docker,
    "ps": _ps,
    "make": _make,
    "echo": _echo,
    "printenv": _printenv,
    "chmod": _chmod,
    "wget": _wget,
    "kubectl": _kubectl,
    "id": _identity,
}


def sql_form(statement: str) -> str:
    """A statement with its words in one case, single spaces and no closing semicolon; quoted text stays as it is."""
    parts = re.split(r"('(?:[^']|'')*'|\"[^\"]*\")", statement.strip().rstrip(";"))
    plain = [
        re.sub(r"\s*([=<>!,()*+/]+)\s*", r"\1", re.sub(r"\s+", " ", part)).lower() if place % 2 == 0 else part
        for place, part in enumerate(parts)
    ]
    return "".join(plain).strip()


def json_form(text: str) -> str:
    """A JSON object or list with its keys in order and no white space that says nothing; any other text as it is."""
    try:
        return json.dumps(json.loads(text), sort_keys=True) if text.lstrip().startswith(("{", "[")) else text
    except (ValueError, RecursionError):
        return text
