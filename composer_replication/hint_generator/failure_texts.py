"""Lines that only a failure prints, and whose they are.

Each group begins with who prints its lines: a word that hidden_failures.py explains, or names of programs. `^` stands
for the beginning of a line; in RUN and CRASH, a task runner may have put the name of a task before it. The patterns are
for re2: no look-around.
"""

from __future__ import annotations

import re

RUN, CRASH, CUT, ERROR, OWN, SHELL, SHORT = "RUN", "CRASH", "CUT", "ERROR", "OWN", "SHELL", "SHORT"

_TASK = r"^(?:\d+[:-]|#\d+ [\d.]+ )?(?:\[[\w:@/.-]+\] |[\w@/.-]+:[\w:.-]+: )?"
_BEGINNINGS = {RUN: _TASK + r"[ \t]*", CRASH: _TASK}

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

_GROUPS = (
    # pytest, unittest, tox
    (
        RUN,
        r"^=*\s*(?:\d+ \w+, )*[1-9]\d* (?:failed|errors?)(?:, \d+ \w+)* in \d[\d.]*s\b",
        r"^(?:\[ *\d+%\] )?(?:FAILED|ERROR) \S+\.py\b",
        r"^\S+\.py::\S+ (?:FAILED|ERROR)\b",
        r"^\S+\.py [.sxX]*[FE][.FEsxX]*(?: +\[ *\d+%\])?$",
        r"^[.sxX]*F[.FEsxX]* +\[ *\d+%\]$",
        r"^=+ (?:FAILURES|ERRORS) =+$",
        r"^!+ (?:Interrupted|stopping after)\b",
        r"^E {3,}(?:assert |[\w.]*(?:Error|Exception)\b)",
        r"^FAILED \((?:failures|errors)=",
        r"^(?:FAIL|ERROR): \w+ \([\w.]+\)",
        r"^evaluation failed :\(",
        r"\b[Cc]overage [^\n]*(?:not (?:met|reached)|does not meet|is less than)",
    ),
    # go
    (
        RUN,
        r"^(?:---|===) FAIL: ",
        r"^FAIL(?:\t\S+|$)",
        r"\[(?:build|setup) failed\]$",
        r"^(?:vet: )?\S+\.go:\d+:\d+: \S",
        r"\bno required module provides package\b",
        r"^package \S+ is not in std\b",
        r"^exit status [1-9]\d*$",
    ),
    # Rust
    (
        RUN,
        r"^error\[E\d{4}\]",
        r"^error: (?:could not compile|test failed|aborting due to|no such command)|^warning: build failed, waiting",
        r"^(?:For more information about this error|Some errors have detailed explanations)",
        r"^error(?:\[[\w:]+\])?: [^\n]*\n +--> \S+:\d",
        r"^(?:test|Suite) result: FAILED",
        r"^test \S+ \.\.\. FAILED$",
        r"^Diff in \S+:\d+",
    ),
    # tests in JavaScript
    (
        RUN,
        r"^Tests?(?: Suites| Files)?:? +(?:\d+ \w+[, |]*)*\b[1-9]\d* failed\b",
        r"^FAIL  ?\S+[./\\]\S+",
        r"^✕ \S",
        r"^[×✗] [^\n]* \d+ ?ms$",
        r"^[❯×] \S+\.(?:test|spec)\.\w+ .*\b[1-9]\d* failed",
        r"^\(fail\) ",
        r"(?:^)[ \t]+[1-9]\d* fail(?:ing|ed)?$",
        r"^at Context\.<anonymous> ",
        r"^✖ (?:failing tests:|[^\n]* \([\d.]+ ?ms\)$)",
        r"^(?:#|ℹ) fail +[1-9]",
        r"^not ok \d+[^\n]*",
        r"^FAILED \| \d+ passed \| [1-9]",
        r"^⎯+ (?:Failed|Unhandled|Startup) ",
        r"^● (?:Test suite failed to run|Unrecognized CLI|[^\n]* › )",
        r"^\d+\) \[\w[^\]\n]*\] › ",
    ),
    # other tests
    (
        RUN,
        r"\b\d+ (?:examples?|tests?|specs?|runs|scenarios?), (?:\d+ (?:assertions|passed), )*[1-9]\d* fail(?:ures?|ed)",
        r"\b\d+ runs, \d+ assertions, \d+ failures, [1-9]\d* errors",
        r"^(?:FAILURES|ERRORS)!$",
        r"^rspec \./\S+:\d+",
        r"\b[1-9]\d* (?:out )?of \d+ (?:tests )?failed\b|\([1-9]\d* FAILED\)",
        r"\bscenarios? \([1-9]\d* failed|\bpassed, [1-9]\d* failed, \d+ skipped",
        r"\| +[1-9]\d* failed\b|\[ FAIL [1-9]|^FAIL! |^Result: FAIL$",
        r"^(?:\[  FAILED  \]|Failed \S+ \[\d|\(\d+ failures?\)$)",
        r"^Test Case [^\n]* failed \(|\*\*\* ?(?:Test Failed|FAILED) ?\*\*\*",
        r"^Tests: \d+, Assertions: \d+,.*(?:Failures|Errors): [1-9]",
        r"^Executed \d+ tests?, with [1-9]\d* failures?",
        r"^\*\* (?:BUILD|TEST|ARCHIVE|ANALYZE|CLEAN) FAILED \*\*",
        r"^(?:Testing failed|The following build commands failed):",
        r"^Failed! +- Failed: +[1-9]",
        r"\bTests run: \d+, (?:Failures: [1-9]|Failures: \d+, Errors: [1-9])",
        r"\btests passed, [1-9]\d* tests? failed out of|^The following tests FAILED:",
        r"^//\S+ +FAILED in ",
        r"\bSome tests failed\.$",
        r"^✘ Test ",
    ),
    # types, lint, format, hooks
    (
        RUN,
        r"\berror TS\d+: ",
        r"^Found [1-9]\d* (?:errors?|diagnostics?|known vulnerabilit\w+|dependency issues)\b[^\n]*",
        r"^[1-9]\d* errors?, \d+ warnings?\b",
        r"^✖ \d+ problems? \([1-9]\d* errors?\b|^[1-9]\d* errors? and \d+ warnings? potentially fixable",
        r"^(?:\[\*\] \d+ fixable with|No fixes available|Errors  Files$)",
        r"^error (?:-|•) \S",
        r"\bfound too many warnings \(maximum",
        r"^Oops! Something went wrong!",
        r"^\d+:\d+ +(?:error|Error:) +\S",
        r"^\S+\.pyi?:\d+(?::\d+)?: [A-Z]{1,4}\d{2,4}:? ",
        r"^[A-Z]{1,4}\d{3,4} .*\n +--> \S+:\d+:\d+",
        r"^[Ww]ould reformat[: ]",
        r"^[1-9]\d* files? would be reformatted",
        r"\bCode style issues (?:found|in)\b",
        r"^[1-9]\d* issues?(?::$| found\.)",
        r"^svelte-check found [1-9]\d* errors?",
        r"^In \S+ line \d+:$",
        r"\b[1-9]\d* offenses? detected\b",
        r"\bSome errors were emitted while\b",
        r"^\S[^\n]*\.{4,}Failed$|^- (?:exit code: [1-9]|files were modified by this hook)",
        r"^husky - \S+ (?:script|hook) (?:failed|exited)|\[FAILED\]$|^✖ +found [1-9]\d* problems|^🥊 ",
        r"\bMD\d{3}/[\w-]+|:\d+ (?:DL|SC)\d{4} |^\S+\.ya?ml:\d+:\d+: ",
        r"^Your code has been rated at (?:-|\d\.)|\b[1-9]\d* serious in \d",
        r"^# npm audit report",
    ),
    # compilers and builds
    (
        RUN,
        r"(?:^)\S+:\d+(?::\d+)?: (?:fatal )?error: ",
        r"^e: (?:file://)?/\S",
        r"\b(?:collect2|ld|cc1|cc1plus|clang|xcrun|xcodebuild): (?:fatal )?error: ",
        r"\bundefined reference to\b",
        r"\blinker command failed\b",
        r"^g?make(?:\[\d+\])?: \*\*\* ",
        r"^CMake Error\b|^-- Configuring incomplete, errors occurred",
        r"^compilation terminated\.|^[1-9]\d* (?:warnings? and \d+ )?errors? generated\.",
        r"^ninja: (?:build stopped|error)",
        r"^BUILD (?:FAILED|FAILURE)\b",
        r"^FAILURE: Build failed\b|^> Get more help at https://help\.gradle",
        r"^(?:> Task \S+|\S+ > .*) FAILED$",
        r"\): error [A-Z]{2,6}\d+: ",
        r"^(?:Build FAILED\.|[1-9]\d* Error\(s\)$)",
        r"^❌ +\S+:\d+:\d+: ",
        r"^ERROR: Build did NOT complete",
        r"\bbuild constraints exclude all Go files|\bimport cycle not allowed\b",
        r"^-- [A-Z ]{4,} -+ \S+\.elm|^\S+\.rb:\d+: syntax error|^! (?:LaTeX Error|Undefined control|Emergency stop)",
        r'^File "[^"\n]+", line \d+, characters',
        r"^build finished with problems|\bwarnings in strict mode",
        r"^(?:== Compilation error in file|Compilation failed due to|\*\* \(Mix\) )",
    ),
    # bundlers, package managers, task runners
    (
        RUN,
        r"^(?:Failed to compile\b|error during build:?$)",
        r"\b(?:ESM|CJS|DTS|IIFE) Build (?:failed|error)|^Module build failed|^\[!\] (?:\(plugin|\w*Error)",
        r"^(?:[x✗✘×] )?Build failed (?:with|in|because)\b",
        r"^Type error: ",
        r"^> Build error occurred",
        r"^ERROR in \S",
        r"^Module not found: ",
        r"\bcompiled with (?:[1-9]\d* )?errors?\b",
        r"^✘ \[ERROR\] ",
        r"^npm (?:ERR!|error)(?: |$)",
        r"^error (?:Command|An unexpected|Couldn't|Package|Your lockfile)\b",
        r"^(?:Usage|Internal) Error: ",
        r"^(?:ELIFECYCLE|ERR_PNPM_\w+)\b",
        r"\bCommand failed with exit code [1-9]",
        r"^ERROR +run failed: |^ERROR #\d",
        r"^(?:Could not find (?:gem\b|\S+ in locally installed gems)|Your requirements could not be resolved\b)",
        r"^An error occurred while installing\b",
        r"\bversion solving failed|^Poetry could not find|· Failed with errors|^nox > [^\n]*failed",
        r"^(?:[Uu]nknown (?:command|option|argument|flag|shorthand)|(?:Invalid|no such) option)\b",
        r"^flag provided but not defined",
        r"^APPLICATION FAILED TO START",
        r"^note: This (?:error originates|is an issue with the package)",
        r"^Failed: +\S+#\S",
        r"\bRunning target \S+ for project \S+ failed\b",
        r"^error: (?:Recipe `|script \"|Script not found)",
        r"^task: Failed to run task",
        r"^ERROR task failed$",
        r"^(?:rake|rails|bin/rails) aborted!",
        r"^bundler: ",
        r"^Command not found: \S",
        r"\bchanged significantly since poetry\.lock was",
        r"^╭─ Error ─",
        r"^Error: (?:unknown|required) (?:flag|command|shorthand)",
        r"\bdid not complete successfully: exit code: [1-9]",
        r"^× No solution found when resolving",
    ),
    (
        CRASH,
        r"^Traceback \(most recent call last\):\n +\S",
        r"^(?:[a-z_]\w*\.)*(?:Syntax|Indentation|Tab)Error: ",
        r"^(?:╭─+|\w+ +) Traceback \(most recent call last\)",
        r"^\S*[Pp]ython[\d.]*: (?:can't open file|No module named|Error while finding module)",
        r"^Exception in thread \"",
        r"^panic: ",
        r"^fatal error: (?:all goroutines|runtime|stack)",
        r"^thread '[^'\n]*' (?:\(\d+\) )?panicked at [^\n]*(?:\n[^\n]*)?",
        r"^note: [^\n]*run with `RUST_BACKTRACE=",
        r"^node:internal/",
        r"^Node\.js v\d+\.",
        r"^(?:Uncaught )?(?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?: [^\n]*\n(?:[^\n]*\n){0,6}? {4}at \S",
        r"^(?:Error: Cannot find module | {4}at [^\n]*(?:node:internal|node_modules)/)",
        r"\bSegmentation fault\b|: Assertion [`'][^\n]*' failed\.",
        r"^(?:Fatal Python error|FATAL ERROR): |\(core dumped\)$",
        r"^\*\* \(\w*Error\) ",
        r"^(?:PHP )?(?:Fatal|Parse) error: ",
        r"^\S+\.rb:\d+:in [^\n]* \([A-Z]\w*(?:::\w+)*\)$",
    ),
    (
        CUT,
        r'^  File "[^"\n]+", line \d+(?:, in \S+)?$',
        # below the line of code that raised it, or alone
        r"(?:\A|^[ \t]+\S[^\n]*\n)(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S",
    ),
    (
        ERROR,
        r"^(?:[❌✗✘✖×⨯🚨💥] *)?(?:[Ee]rror(?: code)?|ERROR|[Ff]atal(?: error)?|FATAL)(?:\[[\w-]+\])?: [^\n]+",
        r"^ *[❌✗✘✖×⨯🚨💥] *[^\n]*\b(?:[Ff]ail(?:ed|ure|ures)?|FAIL(?:ED)?|[Ee]rrors?|ERROR)\b[^\n]*",
        r"^[^\s:]+: (?:[^\n]*: )?No such file or directory$",
    ),
    # programs whose lines begin with their own names
    (
        OWN,
        rf"^(?:/\S*/)?(?P<program>[a-z][\w.+-]*): [^\n]*?(?:{_COMPLAINTS})[^\n]*",
        r"^(?P<script>[\w.-]+): error: ",
    ),
    (
        SHELL,
        r"^(?:\S*/)?(?:\(eval\)|(?:[\w.-]+\.)?(?:ba|z|da|k|fi)?sh|cd|source):(?:\w+:)?(?: ?(?:-c: )?(?:line )?\d+:)? "
        rf"(?P<said>[^\n]*?(?:{_SHELL_COMPLAINTS})[^\n]*)",
    ),
    (
        "git",
        r"^fatal: ",
        r"^remote: (?:error|fatal|ERROR)\b",
        r"^error: (?:pathspec|failed to push|[Yy]our local changes|cannot |can't |could not|unable to|src refspec"
        r"|[Tt]he following untracked|patch failed|\S+: (?:patch does not|already exists)|No such remote|branch "
        r"|you need to|unknown |switch |invalid |no such |remote )",
        r"^CONFLICT \(",
        r"^Automatic merge failed",
        r"^ ! \[(?:remote )?rejected\]",
        r"^(?:There is no tracking information|No stash entries found|merge: \S+ - not something|Patch failed at )",
        r"^(?:Could not apply [0-9a-f]{7}|The stash entry is kept|ERROR: Repository not found)",
        r"^hint: (?:Updates were rejected|See the 'Note about fast|[Rr]esolve all conflicts|after resolving the conf)",
    ),
    ("git-commit", r"^(?:nothing to commit|nothing added to commit|no changes added to commit)\b"),
    (
        "gh",
        r"^HTTP [45]\d\d: ",
        r"^GraphQL: ",
        r"^failed to (?:get run|create|determine)\b",
        r"^unknown (?:flag|command|shorthand)",
        r"^(?:Unknown JSON field|To get started with GitHub CLI, please run)",
        r"^no pull requests found for branch",
        r"^could not (?:determine|find any|resolve to)",
        r"^pull request create failed",
        r"^[^\t\n]+\tfail\t|^X Process completed with exit code [1-9]",
    ),
    (
        "docker docker-compose podman",
        r"^Error(?: response from daemon|: No such )",
        r"^(?:yaml: |validating \S+: )",
        r"^Cannot connect to the Docker daemon",
        r"\bfailed to solve: ",
        r"^no configuration file provided",
        r"^service \".*\" is not running",
        r"^no such service",
        r"^dependency failed to start",
    ),
    ("kubectl helm oc", r"^Error from server", r"^[Ee]rror: ", r"^(?:Unable to connect|The connection) to the server"),
    ("terraform tofu", r"^(?:│ )?Error: "),
    ("mvn mvnw sbt prettier", r"^\[(?:ERROR|error)\] \S"),
    (
        "aws",
        r"^An error occurred \(",
        r"^(?:Unable to locate cred|The config profile|Error (?:when|loading) )",
    ),
    ("gcloud gsutil bq az", r"^ERROR: "),
    ("javac", r"^[1-9]\d* errors?$"),
    ("ansible-playbook dbt", r"\b(?:failed|unreachable|ERROR)=[1-9]"),
    ("Rscript R", r"^(?:Error in [^\n]+ :|Execution halted$)"),
    ("php", r"^ {1,4}ERROR {2}\S"),
    ("redis-cli", r"^\(error\) "),
    ("mongosh", r"^Mongo\w*Error: "),
    ("pod fastlane", r"^\[!\] "),
    ("psql pg_dump pg_restore createdb", r"^(?:psql:\S* )?(?:ERROR|FATAL): +\S"),
    (
        "sqlite3",
        r"^Error: (?:in prepare|near |no such|stepping)|^(?:Parse|Runtime) error near line \d+: ",
    ),
    ("mysql mysqldump mariadb", r"^ERROR \d+ \("),
    ("perl prove", r" at \S+ line \d+\.$", r"^Can't (?:open perl|locate) "),
    (
        f"{SHORT} gh glab psql mysql redis-cli mongosh aws gcloud az kubectl helm brew apt apt-get systemctl launchctl"
        " docker podman npm npx pnpm yarn bun pip pip3 uv poetry cargo go terraform tofu ansible vercel fly heroku make"
        " cmake mix bundle gem composer",
        r"^[A-Za-z›][^\n\t]*\b(?:could not|couldn't|cannot|can't|unable to|not logged in|does not exist|timed out"
        r"|(?:[Pp]ermission|[Aa]ccess) denied|[Uu]nauthorized|[Uu]nrecognized|no such \w+|(?:is|was) refused"
        r"|(?:is|was|are) not (?:installed|found|recognized|running|authorized|logged in|allowed|supported))\b",
        r"^(?:Could not|Couldn't|Cannot|Can't|Failed to|Unable to) ",
    ),
    ("apt apt-get", r"^E: \S|^dpkg: error "),
    ("brew yq", r"^Error: "),
    ("curl", r"(?:^|\d)curl: \(\d+\) "),
    ("wget", r"\bERROR [45]\d\d: "),
    ("jq", r"^parse error: \S"),
    ("json.tool", r"^[A-Z][\w ']+: line \d+ column \d+ \(char \d+\)$"),
    ("ssh scp rsync sftp git", r"\bPermission denied \(publickey", r"^Host key verification failed", r"^rsync error: "),
)

EVIDENCE = tuple(
    (who, re.sub(r"(?<![\[(:\\])\^", _BEGINNINGS.get(who, "^").replace("\\", r"\\"), pattern))
    for who, *patterns in _GROUPS
    for pattern in patterns
)
"""Who prints a line, and its pattern."""

# Lines of these shapes that mean nothing: what was fixed or skipped, numbers, what a search passes over on its way,
# programs whose reader has gone.
HARMLESS = (
    r"\b0 (?:remaining|errors?)\b|# (?:TODO|SKIP|todo|skip)\b|\AERROR: pip's "
    r"|\A\W*(?:[Ee]rror|ERROR|[Ff]atal|FATAL)\b[^:]*: (?:[Nn]one|[\d.,]+\W*\w{0,3})\Z"
    r"|[Bb]roken pipe|\bEPIPE\b|curl: \(23\)|\bwrite error|\A[\w./-]+: [Ww]arning: "
    r"|: File exists\Z|\btype: |: (?:Entering|Leaving) directory"
    r"|\Ago: (?:downloading|added|found|upgraded|finding) "
    r"|\A(?:grep|find|du|rg): .*(?:Permission denied|Is a directory)"
)
