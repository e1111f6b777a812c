"""Errors of commands, by what they print: the shell, options, missing files, git."""

from __future__ import annotations

import re

from composer_replication.hint_generator.details import HintContext, code, error_line, names, path
from composer_replication.hint_generator.errors.form import (
    ERROR,
    OWN,
    RUN,
    SHELL,
    SHORT,
    Answer,
    Begin,
    Output,
    outcome,
    prints,
    says,
    student,
)

_ERROR = re.compile(r"\A(?:(?P<program>\S+): )?(?:[Ee]rror|ERROR|fatal): ")
_SHELL = re.compile(r"\A\S*sh: (?:line \d+: )?")
# What a program says of its own waiting, not a harness of a command.
_WAITED = re.compile(r"\A(?!(?:The )?[Cc]ommand\b).*(?:\btimed out\b|TimeoutError)")
_CREATING = re.compile(r"\b(?:cannot (?:create|touch)|failed to create|mkdir:)")

_COMPLAINTS = (
    r"No such file or directory|[Nn]ot [Ff]ound|[Cc]annot |[Cc]an't |[Cc]ould(?: not|n't) |[Uu]nable to |[Ff]ailed to "
    r"|[Ii]nvalid |[Ii]llegal |[Uu]nrecogni[sz]ed |[Uu]nknown |[Uu]nmatched |[Uu]nterminated |[Uu]nexpected "
    r"|[Mm]issing |requires? an? |is required|Not a directory|[Ii]s a directory|[Pp]ermission denied|not permitted"
    r"|syntax error|parse error|[Ee]rror[:( ]|extra (?:operand|characters)|too (?:many|few) |not balanced|undefined "
    r"|[Bb]ad |is not a |does not |expects |timed out|[Rr]efused"
)
_SHELL_COMPLAINTS = (
    r"command not found|: not found$|no matches found|[Nn]o such file or directory|syntax error|parse error"
    r"|unexpected EOF|unbound variable|bad substitution|ambiguous redirect|not a valid identifier|[Pp]ermission denied"
    r"|[Uu]nmatched|event not found|bad pattern|read-?only variable|cannot (?:execute|create|open)|integer expression"
    r"|unary operator|too many arguments|condition expected|bad option|[Ii]s a directory|[Nn]ot a directory"
    r"|can't cd to|Argument list too long|bad interpreter|Exec format error|Segmentation fault|division by 0"
    r"|invalid (?:option|number)|bad (?:CPU type|math expression)|no such user|unknown file attribute|Text file busy"
)
_COMPLAINING = (
    "gh glab psql mysql redis-cli mongosh aws gcloud az kubectl helm brew apt apt-get systemctl launchctl"
    " docker podman npm npx pnpm yarn bun pip pip3 uv poetry cargo go terraform tofu ansible vercel fly heroku make"
    " cmake mix bundle gem composer"
)

_UNKNOWN = "Use a name that `git branch -a` or `git log` shows."
_EXISTS = "Use the one that exists, or choose another name."
_HOOK = "Make the checks of the hook pass first."

# Causes before what follows from them. Groups of a pattern may stand in its advice.
_ADVICE = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"not a git repository", "Change into the repository first."),
        (r"dubious ownership", "Allow it with `git config --global --add safe.directory`."),
        (r"index\.lock': File exists", "Wait until the other git process has ended."),
        (r"Permission denied|Authentication failed|could not read (?:Username|Password)|Repository not found", ""),
        (r"unable to auto-detect email|empty ident name", "Set `user.name` and `user.email` first."),
        (r"unmerged files|resolve your current index", "Resolve the unmerged files and `git add` them first."),
        (r"untracked working tree files would be overwritten by \w+:\s+\S+", "Move them away or commit them first."),
        (r"would be overwritten by \w+:\s+\S+|You have unstaged changes", "Commit or stash them first."),
        (r"pull request\b.*\balready exists", "Update that pull request instead of opening another."),
        (r"No commits between \S+ and", "Commit something on the branch and push it first."),
        (r"must first push the current branch", "Push the branch first."),
        (r"files were modified by this hook", "Run the hooks and stage what they change before you commit."),
        (r"\(protected branch hook declined\)", "Push a branch of your own, and open a pull request."),
        (r"\bhook id: |husky - .*\b(?:failed|exited)|pre-(?:commit|push) hook\b.*\b(?:failed|exited)", _HOOK),
        (r"\[rejected\].*\((?:non-fast-forward|fetch first)\)", "Pull or rebase onto the remote branch first."),
        (r"Updates were rejected|Note about fast-forwards", "Pull or rebase onto the remote branch first."),
        (r"\[rejected\].*\(stale info\)", "Fetch before you push with a lease."),
        (r"current branch (?P<name>\S+) has no upstream", "Push with `git push -u origin {name}`."),
        (r"no tracking information", "Name the remote and the branch: `git pull origin BRANCH`."),
        (r"No configured push destination", "Add a remote first, or name one."),
        (r"how to reconcile divergent branches", "Give `--rebase`, `--no-rebase` or `--ff-only`."),
        (r"Not possible to fast-forward", "Rebase or merge instead."),
        (r"You are not currently on a branch", "Check out a branch first, or make one."),
        (r"No such remote|does not appear to be a git repository", "Use a remote that `git remote -v` shows."),
        (r"pathspec '[^'\n]+' did not match", "Use a name that `git ls-files` or `git branch -a` shows."),
        (r"path '[^'\n]+' (?:does not exist|exists on disk, but not) in '", "Use a path that this revision has."),
        (r"unknown revision|bad revision|invalid (?:reference|upstream)|[Nn]ot a valid object name", _UNKNOWN),
        (r"not something we can merge|couldn't find remote ref|src refspec \S+ does not match", _UNKNOWN),
        (r"(?:branch|tag|remote)\b.* already exists|' (?:already exists|is already (?:used|checked))", _EXISTS),
        (r"nothing to commit", "Commit only after a change."),
        (r"(?:no changes|nothing) added to commit", "Stage the changes with `git add` first."),
        (r"ignored by one of your \.gitignore files:\s+\S+", "Leave them out."),
        (r"is not fully merged", "Merge it first, or delete it with `-D` on purpose."),
        (r"[Cc]annot delete branch", "Check out another branch first."),
        (r"patch failed:|corrupt patch", "Make the patch against the file as it stands."),
    )
)  # fmt: skip
_PREFIX = re.compile(r"\A(?:(?:fatal|error|remote|hint): |- )+")


@student(
    "shell_syntax",
    says(Begin.SURELY, r"Your bash command contained syntax errors"),
    says(
        Begin.IF_SHORT,
        r"(?:/(?:usr/)?bin/)?(?:ba|z|da)?sh: (?:line )?[^\n]{1,200}"
        r"(?:not found|syntax error|No such file|Permission denied|unexpected)",
    ),
    says(
        Output.SHELL,
        r"\bsyntax error near unexpected token\b|\bsyntax error: unexpected\b|\bSyntax error: ",
        r"\bunexpected EOF while looking for matching\b|\bUnterminated quoted string\b|\bunterminated quoted\b",
        r"^(?:\(eval\)|zsh|/bin/zsh):[^\n]*\bno matches found: (?P<pattern>[^\n]+)",
        r"^(?:\(eval\)|zsh|/bin/zsh):[^\n]*\bread-only variable: (?P<name>\w+)",
        r"^(?:\(eval\)|zsh|bash|sh|/bin/\w+):[^\n]*(?:parse error|bad substitution|unmatched|event not found"
        r"|bad pattern|ambiguous redirect|condition expected|unexpected end of file|not a valid identifier)",
        r"\bYour bash command contained syntax errors\b",
    ),
    prints(
        SHELL,
        r"^(?:\S*/)?(?:\(eval\)|(?:[\w.-]+\.)?(?:ba|z|da|k|fi)?sh|cd|source):(?:\w+:)?(?: ?(?:-c: )?(?:line )?\d+:)? "
        rf"(?P<said>[^\n]*?(?:{_SHELL_COMPLAINTS})[^\n]*)",
    ),
)
def hint_shell_syntax(ctx: HintContext) -> str:
    name, line = ctx.get("name"), error_line(ctx)
    if name and "no matches found" in line:
        return f"Put {code(name)} in single quotes, so that the shell passes it on as it stands."
    if name and "read-only variable" in line:
        return f"{code(name)} cannot be set in this shell: choose another name for the variable."
    return (
        "Quote the command for the shell: close every quote and bracket, and put text with quotes, `$`, `!` or `*` "
        "in single quotes. Put long or nested text into a file and run that."
    )


@student(
    "command_not_found",
    says(
        Output.SHELL,
        r"^(?:[\w/.-]*sh|\(eval\)|env|/usr/bin/env|xargs)?(?::? ?(?:line )?\d+)?:? ?(?P<name>[\w./@+-]+): "
        r"(?:command )?not found$",
        r"\b[Cc]ommand not found: (?P<name>\S+)"
        r"""|^/?(?:usr/bin/)?env: [‘'\"]?(?P<name2>[\w.-]+)[’'\"]?: No such file or directory""",
        r"(?:python[\d.]*|\bpy): No module named (?P<name>[\w.]+)$|\btarget shim binary not found\b",
        r"\bFailed to spawn: `(?P<name>[^`\n]+)`",
        r"^g?make(?:\[\d+\])?: (?P<name>[\w.-]+): No such file or directory",
        r"\bcould not determine executable to run\b|\bis not recognized as (?:an internal|the name)",
    ),
)
def hint_command_not_found(ctx: HintContext) -> str:
    name = ctx.get("name") or ctx.get("command_name")
    if name and "/" in name:
        return f"There is no program {code(name)}. Check its path with `ls` before you run it."
    if name:
        return f"{code(name)} is not installed here. Use a program that is, or install it first."
    return "Use only programs that are installed here; `command -v` tells."


@student(
    "missing_file_in_command",
    says(Output.TARGET, r"\bCould not find a (?P<path>Mix\.Project)\b|\broot manifest not found\b"),
    says(
        Output.POINTED_AT,
        r"^ERROR: file or directory not found: (?P<path>[^\n]+)",
        r"\berror TS(?:5057|5058|6053): [^\n]*'(?P<path>[^'\n]+)'",
        r"^E902 No such file or directory[^\n]*\n *--> (?P<path>[^\s:]+)",
        r"^(?P<path>[^\s:]+)(?::\d+:\d+: E902|: error: Cannot read file:) No such file",
        r"""\bNo files matching (?:the pattern )?(?:were found: )?['\"](?P<path>[^'\"\n]+)['\"]""",
    ),
    says(Output.MODULE, r"\b(?P<path>go\.mod) file not found\b"),
    says(Output.ENTRY_POINT, r"\bCannot find module '(?P<path>[^'\n]+)'\n[\s\S]{0,2000}?requireStack: \[\]"),
    says(Output.USAGE, r"""\b(?:[Ff]ile|[Pp]ath|[Dd]irectory) ['\"](?P<path>[^'\"\n]+)['\"] does not exist\b(?! in)"""),
    says(
        Output.GIT_FILES,
        r"^error: could not find `(?P<path>[^`\n]+)` in `",
        r"^(?:fatal|error): (?:can't open patch|cannot change to|could not open) '"
        r"(?P<path>[^'\n]+)'[^\n]*: No such file",
    ),
    says(
        Output.MISSING,
        # The path stands after the message, in quotes before it, or bare between colons, then maybe with spaces in it.
        r"""\b[Nn]o such file or directory(?:: |, \w+ )['\"](?P<path>[^'\"\n]+)['\"]""",
        r"""\b(?:[Nn]o such file or|[Nn]ot a) directory: (?P<path>[^'\"\n]+)$""",
        r"""['\"`‘](?P<path>[^'\"`’\n]+)['\"`’](?: for reading)?:(?: \[Errno \d+\])? """
        r"(?:[Nn]o such file or|[Nn]ot a) directory",
        r"^(?:[^\n:]+: )*?(?:(?:cannot|can't|[Cc]ould not) \w+:? (?:file )?|stat |lstat |open |chdir |rename )?"
        r"(?P<path>[^\s:]+)(?: to [^\s:]+)?(?:: (?:open|stat|Cannot open|IO error for operation on [^\n:]+))?"
        r"(?:: | \()(?:[Nn]o such file or|[Nn]ot a) directory",
        r"^(?:\S*sh: (?:line \d+: )?)?(?:cat|cd|cp|du|find|grep|head|ls|mv|rm|sed|tail|wc): (?P<path>[^\n:]+): "
        r"(?:[Nn]o such file or|[Nn]ot a) directory",
        r"""\bcan't (?:cd to|open file) (?P<path>[^\s'\"]+)""",
        r"""\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older) (?P<path>[^\s'\"]+) does not exist\b""",
        r"\bCannot find module '(?P<path>\.{0,2}/[^'\n]+)'|^Could not find '(?P<path2>[^'\n]+)'",
        r"\b[Nn]o such file or directory\b|\bENOENT\b"
        r"|\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older)\b[^\n]{0,200} does not exist\b|\bno makefile found\b"
        r"|\b[Nn]ot a directory\b",
    ),
)
def hint_missing_file_in_command(ctx: HintContext) -> str:
    if not ctx.get("path"):
        why = _because(ctx).partition(". ")[0]
        return f"A file that this needs does not exist where it runs{why}. Check with `pwd` and `ls` first."
    if _CREATING.search(error_line(ctx)) is not None:
        return f"The folder of {path(ctx, '')} does not exist: create it first."
    if "ot a directory" in error_line(ctx):
        return f"{path(ctx, '')} is no directory. Look with `ls` where it lies, and name a directory."
    if ctx["path"].startswith(("/", "~")):
        return f"{path(ctx, '')} does not exist. List its folder, and use a path that exists."
    return (
        f"{path(ctx, '')} does not exist in the directory where the command runs. "
        "Check with `pwd` and `ls`, and use a path that exists."
    )


@student(
    "bad_option",
    says(Output.POINTED_AT, r"\berror TS(?:5023|5025|6044|6046): |^ERROR: Wrong expression passed to "),
    says(
        Output.USAGE,
        r"\b(?:[Uu]nknown|[Uu]nrecogni[sz]ed|[Ii]llegal|[Uu]nexpected|[Uu]nsupported|[Nn]o such|[Bb]ad|invalid) "
        r"(?:shorthand |long |command-line )?(?:option|argument|flag|switch|parameter)s?\b"
        r"|\bInvalid (?:option|flag|switch)\b",
        r"\bflag provided but not defined\b|\bthe following arguments are required\b"
        r"|\bthe following required arguments\b|\binvalid choice: "
        r"|^\S+: error: (?:argument |ambiguous option|one of the arguments)|\bMissing (?:argument|option|parameter) '"
        r"|\bInvalid value for '|\bGot unexpected extra argument",
        r"\b[Uu]nknown (?:sub-?command|command)\b|\bno such (?:sub-?)?command\b"
        r"|\bis not a (?:git|docker|kubectl) command\b|\bunrecognized subcommand\b"
        r"|\b(?:requires|expects|accepts) (?:at least |at most |exactly |between )?\w+ arg",
        r"\A(?:[Uu]sage|USAGE): |\boption requires an argument\b|\bmissing operand\b|\bmissing (?:file )?argument\b"
        r"|\bunknown (?:primary|predicate)\b|\bUnknown JSON field\b",
    ),
)
def hint_bad_option(ctx: HintContext) -> str:
    line, program = error_line(ctx).partition(". ")[0], _command(ctx, "The command")
    if (prefix := _ERROR.match(line)) is not None:
        program = code(prefix["program"]) if prefix["program"] else program
        line = line[prefix.end() :]
    line = line.removeprefix(f"{ctx.get('command_name')}: ")
    if line.lower().startswith("usage: "):
        return f"Call {_command(ctx)} as its usage says: {line[len('usage: ') :]}."
    if line:
        if ctx.get("suggestion"):
            then = f"Use {code(ctx['suggestion'])}."
        elif ctx.get("available_names"):
            then = f"Available: {names(ctx['available_names'], 30)}."
        else:
            then = "Look its options up with `--help` first."
        return f"{program} would answer: {line}. {then}"
    return f"Use only options that {_command(ctx)} has; `--help` lists them."


@student(
    "timeout",
    says(
        Answer.TIMEOUT,
        r"\btimed out\b|\btimeout (?:of|after|exceeded)\b|\bTimeoutError\b|\bbecause it took more than \d+ seconds",
    ),
    says(
        Output.TIMEOUT,
        r"^(?:Command|command|The command)\b[^\n]*\btimed out\b|\bwas cancelled because it took more than \d+ seconds",
    ),
    says(Output.WAITED, r"\btimed out\b|\bTimeoutError\b"),
)
def hint_timeout(ctx: HintContext) -> str:
    line = error_line(ctx)
    if _WAITED.search(line) is not None:
        return f"This would wait in vain: {line}. Make sure that what it waits for comes."
    return (
        f"{_command(ctx, 'This')} takes longer than is allowed here. "
        "Do less at once, set a longer timeout, or run it in the background."
    )


outcome(
    "merge_conflict",
    says(Output.GIT, r"^CONFLICT \([^\n]*"),
)


@student(
    "git_error",
    says(
        Output.GIT,
        r"^(?:fatal|remote): "
        r"|^error: (?:pathspec|failed to push|Your local changes|cannot (?:pull|rebase|lock|delete)|src refspec"
        r"|could not apply|The following untracked|patch failed|No such remote|you need to resolve)",
        r"\bnothing to commit\b|\bno changes added to commit\b|\bnothing added to commit\b|\bnot a git repository\b"
        r"|\bpre-commit hook\b|^husky - |^- hook id: ",
        r"\bpull request\b[^\n]*\balready exists\b|\bNo commits between \S+ and\b"
        r"|\bmust first push the current branch\b",
    ),
    prints(
        "git",
        *(r"^fatal: ", r"^remote: (?:error|fatal|ERROR)\b"),
        r"^error: (?:pathspec|failed to push|[Yy]our local changes|cannot |can't |could not|unable to|src refspec"
        r"|[Tt]he following untracked|patch failed|\S+: (?:patch does not|already exists)|No such remote|branch "
        r"|you need to|unknown |switch |invalid |no such |remote )",
        *(r"^CONFLICT \(", r"^Automatic merge failed", r"^ ! \[(?:remote )?rejected\]"),
        r"^(?:There is no tracking information|No stash entries found|merge: \S+ - not something|Patch failed at )",
        r"^(?:Could not apply [0-9a-f]{7}|The stash entry is kept|ERROR: Repository not found)",
        r"^hint: (?:Updates were rejected|See the 'Note about fast|[Rr]esolve all conflicts|after resolving the conf)",
    ),
    prints("git-commit", r"^(?:nothing to commit|nothing added to commit|no changes added to commit)\b"),
    prints(
        "gh",
        *(r"^HTTP [45]\d\d: ", r"^GraphQL: ", r"^failed to (?:get run|create|determine)\b"),
        r"^unknown (?:flag|command|shorthand)",
        *(r"^(?:Unknown JSON field|To get started with GitHub CLI, please run)", r"^no pull requests found for branch"),
        *(r"^could not (?:determine|find any|resolve to)", r"^pull request create failed"),
        r"^[^\t\n]+\tfail\t|^X Process completed with exit code [1-9]",
    ),
)
def hint_git_error(ctx: HintContext) -> str:
    line = _ERROR.sub("", error_line(ctx))
    if not line:
        return "Make sure that git can do this in the repository as it stands."
    answers = "`gh`" if ctx.get("command_name") == "gh" else "git"
    return f"{answers} would answer: {line}. {advice_on(line)}".rstrip()


@student(
    "command_failed",
    prints(
        RUN,
        r"^(?:Failed to compile\b|error during build:?$)",
        r"\b(?:ESM|CJS|DTS|IIFE) Build (?:failed|error)|^Module build failed|^\[!\] (?:\(plugin|\w*Error)",
        *(r"^(?:[x✗✘×] )?Build failed (?:with|in|because)\b", r"^Type error: ", r"^> Build error occurred"),
        *(r"^ERROR in \S", r"^Module not found: ", r"\bcompiled with (?:[1-9]\d* )?errors?\b", r"^✘ \[ERROR\] "),
        *(r"^npm (?:ERR!|error)(?: |$)", r"^error (?:Command|An unexpected|Couldn't|Package|Your lockfile)\b"),
        *(r"^(?:Usage|Internal) Error: ", r"^(?:ELIFECYCLE|ERR_PNPM_\w+)\b", r"\bCommand failed with exit code [1-9]"),
        r"^ERROR +run failed: |^ERROR #\d",
        r"^(?:Could not find (?:gem\b|\S+ in locally installed gems)|Your requirements could not be resolved\b)",
        r"^An error occurred while installing\b",
        r"\bversion solving failed|^Poetry could not find|· Failed with errors|^nox > [^\n]*failed",
        r"^(?:[Uu]nknown (?:command|option|argument|flag|shorthand)|(?:Invalid|no such) option)\b",
        *(r"^flag provided but not defined", r"^APPLICATION FAILED TO START"),
        *(r"^note: This (?:error originates|is an issue with the package)", r"^Failed: +\S+#\S"),
        *(r"\bRunning target \S+ for project \S+ failed\b", r"^error: (?:Recipe `|script \"|Script not found)"),
        *(r"^task: Failed to run task", r"^ERROR task failed$", r"^(?:rake|rails|bin/rails) aborted!", r"^bundler: "),
        *(r"^Command not found: \S", r"\bchanged significantly since poetry\.lock was", r"^╭─ Error ─"),
        r"^Error: (?:unknown|required) (?:flag|command|shorthand)",
        *(r"\bdid not complete successfully: exit code: [1-9]", r"^× No solution found when resolving"),
    ),
    prints(
        ERROR,
        r"^(?:[❌✗✘✖×⨯🚨💥] *)?(?:[Ee]rror(?: code)?|ERROR|[Ff]atal(?: error)?|FATAL)(?:\[[\w-]+\])?: [^\n]+",
        r"^ *[❌✗✘✖×⨯🚨💥] *[^\n]*\b(?:[Ff]ail(?:ed|ure|ures)?|FAIL(?:ED)?|[Ee]rrors?|ERROR)\b[^\n]*",
        r"^[^\s:]+: (?:[^\n]*: )?No such file or directory$",
    ),
    prints(
        OWN,
        rf"^(?:/\S*/)?(?P<program>[a-z][\w.+-]*): [^\n]*?(?:{_COMPLAINTS})[^\n]*",
        r"^(?P<script>[\w.-]+): error: ",
    ),
    prints(
        "docker docker-compose podman",
        *(r"^Error(?: response from daemon|: No such )", r"^(?:yaml: |validating \S+: )"),
        *(r"^Cannot connect to the Docker daemon", r"\bfailed to solve: ", r"^no configuration file provided"),
        *(r"^service \".*\" is not running", r"^no such service", r"^dependency failed to start"),
    ),
    prints(
        "kubectl helm oc",
        *(r"^Error from server", r"^[Ee]rror: ", r"^(?:Unable to connect|The connection) to the server"),
    ),
    prints("terraform tofu", r"^(?:│ )?Error: "),
    prints("mvn mvnw sbt prettier", r"^\[(?:ERROR|error)\] \S"),
    prints("aws", r"^An error occurred \(", r"^(?:Unable to locate cred|The config profile|Error (?:when|loading) )"),
    prints("gcloud gsutil bq az", r"^ERROR: "),
    prints("javac", r"^[1-9]\d* errors?$"),
    prints("ansible-playbook dbt", r"\b(?:failed|unreachable|ERROR)=[1-9]"),
    prints("Rscript R", r"^(?:Error in [^\n]+ :|Execution halted$)"),
    prints("php", r"^ {1,4}ERROR {2}\S"),
    prints("redis-cli", r"^\(error\) "),
    prints("mongosh", r"^Mongo\w*Error: "),
    prints("pod fastlane", r"^\[!\] "),
    prints("psql pg_dump pg_restore createdb", r"^(?:psql:\S* )?(?:ERROR|FATAL): +\S"),
    prints("sqlite3", r"^Error: (?:in prepare|near |no such|stepping)|^(?:Parse|Runtime) error near line \d+: "),
    prints("mysql mysqldump mariadb", r"^ERROR \d+ \("),
    prints("perl prove", r" at \S+ line \d+\.$", r"^Can't (?:open perl|locate) "),
    prints(
        f"{SHORT} {_COMPLAINING}",
        r"^[A-Za-z›][^\n\t]*\b(?:could not|couldn't|cannot|can't|unable to|not logged in|does not exist|timed out"
        r"|(?:[Pp]ermission|[Aa]ccess) denied|[Uu]nauthorized|[Uu]nrecognized|no such \w+|(?:is|was) refused"
        r"|(?:is|was|are) not (?:installed|found|recognized|running|authorized|logged in|allowed|supported))\b",
        r"^(?:Could not|Couldn't|Cannot|Can't|Failed to|Unable to) ",
    ),
    prints("apt apt-get", r"^E: \S|^dpkg: error "),
    prints("brew yq", r"^Error: "),
    prints("curl", r"(?:^|\d)curl: \(\d+\) "),
    prints("wget", r"\bERROR [45]\d\d: "),
    prints("jq", r"^parse error: \S"),
    prints("json.tool", r"^[A-Z][\w ']+: line \d+ column \d+ \(char \d+\)$"),
    prints(
        "ssh scp rsync sftp git",
        *(r"\bPermission denied \(publickey", r"^Host key verification failed", r"^rsync error: "),
    ),
    is_vague=True,
)
def hint_command_failed(ctx: HintContext) -> str:
    """Quote the command, if nothing more specific is known."""
    line, exit_code = error_line(ctx), ctx.get("exit_code")
    if line:
        line = _SHELL.sub("", line).removeprefix(f"{ctx.get('command_name')}: ")
        return f"{_command(ctx, 'The command')} would fail: {line}. Change the command or what it works on."
    ends = f"end with exit code {exit_code}" if exit_code is not None else "fail"
    return (
        f"{_command(ctx, 'The command')} would {ends} and print nothing. "
        "Let the command handle that case, or have it print what it finds."
    )


def refusal_in(output: str) -> str | None:
    """Return the line that says why git refused, without git's prefix."""
    for pattern, _ in _ADVICE:
        found = pattern.search(output)
        if found is not None:
            start, end = output.rfind("\n", 0, found.start()) + 1, output.find("\n", found.end())
            return _PREFIX.sub("", " ".join(output[start : end if end >= 0 else None].split()))
    return None


def advice_on(line: str) -> str:
    """Return what to do about a refusal; empty if that is not certain."""
    for pattern, advice in _ADVICE:
        found = pattern.search(line)
        if found is not None:
            return advice.format(**found.groupdict())
    return ""


def _command(ctx: HintContext, otherwise: str = "the command") -> str:
    name = ctx.get("command_name")
    return code(name) if isinstance(name, str) and name else otherwise


def _because(ctx: HintContext) -> str:
    line = error_line(ctx)
    return f": {line}" if line else ""
