"""Errors of files and edits, and of what an environment does not allow."""

from __future__ import annotations

import re

from composer_replication.hint_generator.details import HintContext, code, error_line, one_line, path
from composer_replication.hint_generator.errors.form import Answer, Begin, Output, says, student

_SYNTAX = re.compile(r"\b[EF]\d{3} [^\r\n]+|\b\w*(?:Syntax|Indentation|Tab)Error: [^\r\n]+")


@student(
    "edit_before_read",
    says(Begin.SURELY, r"File has not been read yet"),
    says(
        Answer.FILES,
        r"\bFile has not been read yet\b|\bmust (?:first )?read (?:the file )?[^\n]{0,200}\bbefore\b",
        r"\bRead it first before (?:writing|editing)",
    ),
)
def hint_edit_before_read(ctx: HintContext) -> str:
    return f"Read {path(ctx, 'the file')} before you edit or overwrite it."


@student(
    "edit_multiple_matches",
    says(Begin.SURELY, r"Found \d+ matches of the string to replace"),
    says(
        Answer.FILES,
        r"\bFound (?P<matches>\d+) (?:matches|occurrences) of the string to replace",
        r"\bMultiple occurrences of old_str\b|\bold_?string found multiple times",
        r"\bexpected 1 occurrences? but found (?P<matches>[2-9]|\d\d+)"
        r"|\bfound (?P<matches2>[2-9]|\d\d+) (?:times|matches)\b",
    ),
)
def hint_edit_multiple_matches(ctx: HintContext) -> str:
    matches = ctx.get("matches")
    stands = f"stands {matches} times" if matches else "stands more than once"
    return (
        f"The text to replace {stands} in {path(ctx, 'the file')}. "
        "Give enough of the lines around it to make it unique, or replace all occurrences on purpose."
    )


@student(
    "edit_no_match",
    says(
        Begin.SURELY,
        r"String to replace not found|No replacement was performed|(?:[Ee]rror: )?apply_patch verification failed"
        r"|(?:[Ee]rror: )?Failed to find (?:expected lines|context)\b[^\n]* in ",
    ),
    says(
        Answer.FILES,
        r"\bString to replace not found\b|\bdid not appear verbatim\b|\bold_?str(?:ing)? not found\b",
        r"\bFailed to find (?:expected lines|context)\b(?:[^\n]* in (?P<path>[^\n]+?):?\s*(?:\n|\Z))?",
        r"\b0 occurrences found\b|\bSEARCH block\b[^\n]*\bnot (?:found|match)",
        r"\bapply_patch verification failed\b(?![^\n]*(?:No such file|does not exist|invalid|malformed|no hunks))",
    ),
)
def hint_edit_no_match(ctx: HintContext) -> str:
    file = path(ctx, "the file")
    return f"Read {file} and copy the text to replace exactly as it stands there, every space, tab and line break."


@student(
    "edit_stale",
    says(Begin.SURELY, r"File has been (?:unexpectedly )?modified since"),
    says(Answer.FILES, r"\b(?:modified|changed) since (?:it was )?(?:last )?read\b|\bunexpectedly modified\b"),
)
def hint_edit_stale(ctx: HintContext) -> str:
    return f"Read {path(ctx, 'the file')} again before you edit it: it has changed since you read it."


@student(
    "edit_no_change",
    says(Begin.SURELY, r"No changes to make: "),
    says(
        Answer.FILES,
        r"\bNo changes? to (?:make|apply)\b|\bexactly the same\b|\bare identical\b",
        r"\bapply_patch[^\n]*produc\w+ no changes?\b",
    ),
)
def hint_edit_no_change(ctx: HintContext) -> str:
    return (
        f"Edit {path(ctx, 'the file')} only where the new text differs from the old. "
        "If it already says what you want, go on."
    )


@student(
    "edit_syntax_error",
    says(Begin.SURELY, r"\[?Your (?:proposed )?edit has introduced"),
    says(Answer.FILES, r"\bYour (?:proposed )?edit has introduced (?:new )?syntax error"),
)
def hint_edit_syntax_error(ctx: HintContext) -> str:
    """Say what does not parse: the harness checked the edited file and refused the edit."""
    wrong = _SYNTAX.search(str(ctx.get("error_message") or ""))
    says = f" ({one_line(wrong[0])})" if wrong is not None else ""
    return (
        f"Write the edit of {path(ctx, 'the file')} so that the file still parses{says}. "
        "Keep the indentation of the lines around it and replace whole statements."
    )


@student(
    "file_too_large",
    says(Begin.SURELY, r"File content \([^)\n]*\) exceeds maximum"),
    says(
        Answer.FILES,
        r"\((?P<size>[\d,.]+ ?\w+)\) exceeds maximum allowed (?:tokens|size) \((?P<limit>[^)\n]+)\)",
        r"\bexceeds (?:the )?maximum allowed (?:tokens|size)\b|\bfile (?:content )?is too large\b",
    ),
)
def hint_file_too_large(ctx: HintContext) -> str:
    limit = f" (the limit is {ctx['limit']})" if ctx.get("limit") else ""
    if not ctx.get("path"):
        return f"What this asks for is too large for one answer{limit}. Ask for less, by a filter, a range or a limit."
    return (
        f"{path(ctx, '')} is too large to read at once{limit}. "
        "Search it for what you need, or read a part of it with an offset and a limit."
    )


@student(
    "unsupported_file",
    says(
        Answer.FILES,
        r"\bcannot read (?:this )?binary files?\b|\bappears to be (?:a )?binary\b|\bunsupported file type\b",
    ),
)
def hint_unsupported_file(ctx: HintContext) -> str:
    """Say how to read a binary file that was given to a tool for text."""
    return f"{path(ctx, 'The file')} is not a text file: inspect it with a command made for its type."


@student(
    "file_exists",
    says(
        Answer.FILES,
        r"\bEEXIST\b(?:[^\n]*?, \w+ '(?P<path>[^'\n]+)')?|\bFile already exists\b",
        r"""\bfile [`'\"]?(?P<path>[^\s`'\"]+)[`'\"]? already exists\b""",
    ),
    says(Output.GIT_FILES, r"^fatal: destination path '(?P<path>[^'\n]+)' already exists"),
    says(
        Output.EXISTS,
        r"^\w+: (?:[^\n:'‘]*['‘])?(?P<path>[^\n:'’]+)['’]?: File exists",
        r"\b(?:EEXIST: file already exists, \w+|File exists:) '(?P<path>[^'\n]+)'",
        r"^(?:[^\n:]+: )?(?:mkdir|open|symlink|link) (?P<path>[^\s:]+): file exists",
        r": (?:file exists: (?P<path>[^\n]+)$|(?P<path2>[^\n:]+): cannot overwrite existing file)",
        r"""\b(?:[Ff]ile|[Dd]irectory|[Ff]older|[Pp]ath|destination) ['\"`]"""
        r"""(?P<path>[^'\"`\n]+)['\"`] already exists\b""",
    ),
)
def hint_file_exists(ctx: HintContext) -> str:
    do = "use" if ctx.get("command") else "edit"
    return f"{path(ctx, 'That file')} exists already: {do} it, or choose another name."


@student(
    "is_directory",
    says(Answer.FILES, r"\bEISDIR\b|\bIsADirectoryError\b|\bis a directory\b"),
    says(
        Output.DIRECTORY,
        r"^(?:\S*sh: (?:line \d+: )?)?[^\n:]+: (?:cannot \w+ )?['‘]?(?P<path>[^\n:'’]+)['’]?: [Ii]s a directory",
        r"\b[Ii]s a directory\b|\bomitting directory '(?P<path>[^'\n]+)'",
    ),
)
def hint_is_directory(ctx: HintContext) -> str:
    line = error_line(ctx)
    if line.startswith(("rm: ", "cp: ")):
        return f"{path(ctx, 'That path')} is a directory: give `{line[:2]}` the option `-r`, or name a file."
    do = "name" if ctx.get("command") else "open"
    return f"{path(ctx, 'That path')} is a directory: list it, and {do} a file in it."


@student(
    "path_not_found",
    says(Begin.SURELY, r"Path does not exist: "),
    says(
        Answer.FILES,
        r"\b(?:Path|Directory|Folder) (?:does not exist|not found)(?:: (?P<path>[^\n]+))?",
        r"\bThe (?:path|directory) (?P<path>\S+) does not exist\b|\bENOTDIR\b|\bNotADirectoryError\b",
    ),
)
def hint_path_not_found(ctx: HintContext) -> str:
    if ctx.get("suggestion"):
        return f"There is no path {path(ctx, 'of that name')}: use {code(ctx['suggestion'], 120)}."
    if ctx.get("path"):
        return f"There is no path {path(ctx, '')}. List its parent folder and use a path that exists."
    return "List the parent folder first, and use a path that exists."


@student(
    "file_not_found",
    says(Begin.SURELY, r"File does not exist\."),
    says(Begin.IF_SHORT, r"File \S+ not found"),
    says(
        Answer.FILES,
        r"\bFile (?:does not exist|not found)(?:: (?P<path>[^\n]+))?"
        r"|\bFile (?P<path2>\S+) (?:not found|does not exist)",
        r"\bENOENT\b[^\n]*?, \w+ '(?P<path>[^'\n]+)'|\bENOENT\b|\bFileNotFoundError\b|\bno such file\b",
    ),
)
def hint_file_not_found(ctx: HintContext) -> str:
    if ctx.get("suggestion"):
        return f"There is no file {path(ctx, 'of that name')}: use {code(ctx['suggestion'], 120)}."
    if ctx.get("path"):
        return f"There is no file {path(ctx, '')}. Find the right path by listing or searching before you open it."
    return "Find the file's path by listing or searching before you open it."


@student(
    "permission_denied",
    says(Begin.SURELY, r"failed in sandbox"),
    says(
        Answer.FILES,
        r"\bEACCES\b[^\n]*?, \w+ '(?P<path>[^'\n]+)'|\bEACCES\b|\bEPERM\b|\bPermissionError\b",
        r"\bpermission denied\b|\boperation not permitted\b|\bread-only file system\b",
        r"\b(?:failed in|denied by(?: the)?|blocked by(?: the)?) sandbox\b|\bsandbox(?:ing)? (?:error|denied)\b",
        r"\boutside (?:of )?the (?:project|workspace|allowed|working)\b|\baccess denied\b",
    ),
    says(
        Output.PERMISSION,
        r"""\b[Pp]ermission denied(?:: |, \w+ )['\"](?P<path>[^'\"\n]+)['\"]""",
        r"""['\"‘](?P<path>[^'\"’\n]+)['\"’]: (?:Permission denied|Operation not permitted)""",
        r": (?P<path>[^\s:]+): (?:Permission denied|Operation not permitted)",
        r"\b[Pp]ermission denied\b|\bOperation not permitted\b|\bEACCES\b|\bEPERM\b|\bread-only file system\b"
        r"|\bRead-only file system\b",
    ),
)
def hint_permission_denied(ctx: HintContext) -> str:
    line = error_line(ctx)
    if ctx.get("exit_code") == 126 and ctx.get("path"):
        return f"{path(ctx, '')} is not executable: run it with its interpreter, or `chmod +x` it first."
    where = f" at {path(ctx, '')}" if ctx.get("path") else ""
    reason = f": {line}" if line and not where else ""
    return f"You have no permission for this{where}{reason}. Work inside the project, or ask for access first."


@student(
    "blocked_command",
    says(
        Answer.REST,
        r"\A(?P<name>[\w.-]+) in '[^\n]*' was blocked|\ABlocked: (?P<name2>[^\n]{1,100}?)(?:\. |\.?\n|\.?\Z)"
        r"|\bblocked by policy\b",
        r"""\bOperation ['\"`](?P<name>[^'\"`\n]{1,60})['\"`] is not supported by this environment""",
    ),
    says(Output.OUTSIDE, r"""^Operation ['\"`](?P<name>[^'\"`\n]{1,60})['\"`] is not supported by this environment"""),
)
def hint_blocked_command(ctx: HintContext) -> str:
    """Name what this harness never runs, such as an editor or a long sleep."""
    name = ctx.get("name") or ctx.get("command_name")
    what = code(name) if name else "commands that wait for input or run without end"
    instead = error_line(ctx).partition(". ")[2].partition(". ")[0] or "Use a command that ends by itself"
    return f"Do not run {what} here: this environment does not allow it. {instead}."


@student(
    "bad_pattern",
    says(Answer.REST, r"\bregex parse error\b|\binvalid regular expression\b|\bInvalid regex\b"),
    says(
        Output.PATTERN,
        r"\bregex parse error\b"
        r"|^(?:\w?grep|sed|awk|rg)[^\n]*(?:[Ii]nvalid (?:regular expression|preceding|range|command code)"
        r"|[Uu]nmatched |parentheses not balanced|brackets \(\[ \]\) not balanced|unknown command|unknown option to"
        r"|extra characters|unterminated|undefined label|repetition-operator|command expects)",
    ),
)
def hint_bad_pattern(ctx: HintContext) -> str:
    """Say how to write a search pattern that did not compile."""
    line = error_line(ctx)
    if line.startswith("sed: "):
        return (
            f"sed would answer: {line.removeprefix('sed: ')}. "
            "End every part of its script with the delimiter; on macOS `-i` takes a suffix, as in `-i ''`."
        )
    return "Escape the special characters of the search pattern, such as ( [ { . * ?, or search for fixed text."
