"""What the output of a failed command shows, in the order in which it is tried.

A test run prints tracebacks, a traceback names missing files, git quotes hooks that lint: what says more about the
cause comes first. Named groups become details of the error.
"""

from __future__ import annotations

import re

from composer_replication.hint_generator.rules import Rules

OUTPUT_TEXTS = Rules(
    re.MULTILINE,
    (
        "timeout",
        r"^(?:Command|command|The command)\b[^\n]*\btimed out\b",
        r"\bwas cancelled because it took more than \d+ seconds",
    ),
    # A full disk makes everything fail, and everything reports it in its own way.
    ("harness_broken", r"\bNo space left on device\b", r"\bENOSPC\b"),
    ("blocked_command", r"""^Operation ['\"`](?P<name>[^'\"`\n]{1,60})['\"`] is not supported by this environment"""),
    # A script that stops: what it says of itself comes before what the words mean in a command.
    ("traceback", r"^[^\s:]+\.(?:ba|z)?sh: line \d+: "),
    ("shell_syntax", r"\bsyntax error near unexpected token\b", r"\bsyntax error: unexpected\b", r"\bSyntax error: "),
    (
        "shell_syntax",
        r"\bunexpected EOF while looking for matching\b",
        r"\bUnterminated quoted string\b",
        r"\bunterminated quoted\b",
    ),
    ("shell_syntax", r"^(?:\(eval\)|zsh|/bin/zsh):[^\n]*\bno matches found: (?P<pattern>[^\n]+)"),
    ("shell_syntax", r"^(?:\(eval\)|zsh|/bin/zsh):[^\n]*\bread-only variable: (?P<name>\w+)"),
    (
        "shell_syntax",
        r"^(?:\(eval\)|zsh|bash|sh|/bin/\w+):[^\n]*(?:parse error|bad substitution|unmatched"
        r"|event not found|bad pattern|ambiguous redirect|condition expected"
        r"|unexpected end of file|not a valid identifier)",
    ),
    ("shell_syntax", r"\bYour bash command contained syntax errors\b"),
    (
        "command_not_found",
        r"^(?:[\w/.-]*sh|\(eval\)|env|/usr/bin/env"
        r"|xargs)?(?::? ?(?:line )?\d+)?:? ?(?P<name>[\w./@+-]+): (?:command )?not found$",
    ),
    (
        "command_not_found",
        r"\b[Cc]ommand not found: (?P<name>\S+)",
        r"""^/?(?:usr/bin/)?env: [‘'\"]?(?P<program>[\w.-]+)[’'\"]?: No such file or directory""",
    ),
    (
        "command_not_found",
        r"(?:python[\d.]*|\bpy): No module named (?P<name>[\w.]+)$",
        r"\btarget shim binary not found\b",
    ),
    ("command_not_found", r"\bFailed to spawn: `(?P<name>[^`\n]+)`"),
    ("command_not_found", r"^g?make(?:\[\d+\])?: (?P<name>[\w.-]+): No such file or directory"),
    (
        "command_not_found",
        r"\bcould not determine executable to run\b",
        r"\bis not recognized as (?:an internal|the name)",
    ),
    (
        "unknown_name",
        r"""\bMissing script: ['\"]?(?P<name>[^'\"\s]+)""",
        r"\bNo rule to make target [`'‘](?P<target>[^'’\n]+)",
    ),
    (
        "unknown_name",
        r"""\bno tasks? (?:named )?[`'\"]?(?P<name>[\w:.-]+)[`'\"]? (?:found|in)\b""",
        r"^error: Script not found \"(?P<script>[^\"]+)",
    ),
    ("unknown_name", r"\bTask '(?P<name>[^'\n]+)' not found\b"),
    ("missing_file_in_command", r"\bCould not find a (?P<path>Mix\.Project)\b", r"\broot manifest not found\b"),
    ("type_error", r"^usage: str_replace_editor\b"),
    # code that stands in the command itself
    ("traceback", r'^(?: +File "<(?:string|stdin)>", line \d+\n|\[eval\]:\d+\n)(?:[^\n]*\n){1,4}\w*Error: '),
    # what a test runner or a checker was pointed at
    ("missing_file_in_command", r"^ERROR: file or directory not found: (?P<path>[^\n]+)"),
    ("missing_file_in_command", r"\berror TS(?:5057|5058|6053): [^\n]*'(?P<path>[^'\n]+)'"),
    ("bad_option", r"\berror TS(?:5023|5025|6044|6046): ", r"^ERROR: Wrong expression passed to "),
    ("missing_file_in_command", r"^E902 No such file or directory[^\n]*\n *--> (?P<path>[^\s:]+)"),
    ("missing_file_in_command", r"^(?P<path>[^\s:]+)(?::\d+:\d+: E902|: error: Cannot read file:) No such file"),
    (
        "missing_file_in_command",
        r"""\bNo files matching (?:the pattern )?(?:were found: )?['\"](?P<path>[^'\"\n]+)['\"]""",
    ),
    ("unknown_name", r"^ERROR: not found: (?P<name>\S+::\S+)"),
    ("unknown_name", r"^No test files found[^\n]*\s+filter: (?P<name>[^\n]+)"),
    ("unknown_name", r"^No tests found\b[\s\S]{0,3000}?^Pattern: (?P<name>[^\n]+) - 0 matches"),
    ("unknown_name", r"^error: no \w+ target named `(?P<name>[^`\n]+)`"),
    # tests
    ("test_failure", r"^\s*--- FAIL: (?P<test>\S+)"),
    ("compile_error", r"^FAIL\s+\S+ \[(?:build|setup) failed\]"),
    (
        "test_failure",
        r"^FAIL(?:\t\S+|$)",
        r"^FAILED (?P<test>\S+::\S+)",
        r"^ERROR (?:collecting )?(?P<module>\S+\.py)\b",
        r"^E   +\S",
    ),
    (
        "test_failure",
        r"^=+ .*\b\d+ (?:failed|errors?)\b.*=+$",
        r"\b\d+ failed, \d+ (?:passed|skipped)",
        r"^\d+ failed\b",
    ),
    (
        "test_failure",
        r"^FAILED \((?:failures|errors)=",
        r"^(?:FAIL|ERROR): (?P<test>test\w*)",
        r"^test result: FAILED",
        r"^test (?P<case>\S+) \.\.\. FAILED",
    ),
    (
        "test_failure",
        r"^\s*(?:Tests?|Test Suites|Test Files):? +\d+ failed",
        r"^\s*(?:FAIL|❯) +\S+\.(?:test|spec)\.\w+",
        r"^\s*\d+ failing$",
        r"^\s*\d+ fail$",
    ),
    (
        "test_failure",
        r"\b\d+ (?:tests|examples|runs), (?:\d+ assertions, )?[1-9]\d* failures?",
        r"^# fail [1-9]",
        r"^not ok \d+",
        r"\bTEST FAILED\b",
        r"^✖ failing tests",
    ),
    (
        "test_failure",
        r"^Executed \d+ tests?, with [1-9]\d* failures?",
        r"^Failed! +- Failed: +[1-9]",
        r"Tests run: \d+, Failures: [1-9]",
    ),
    (
        "no_match",
        r"^(?:=+ )?no tests ran in\b",
        r"^(?:=+ )?\d+ deselected in\b",
        r"^NO TESTS RAN\b",
        r"^(?:Error: )?No test(?: file)?s found\b",
    ),
    # no network: compilers and git fail for it too
    (
        "service_unavailable",
        r"\b[Cc]ould not resolve (?:host|proxy)",
        r"\bTemporary failure (?:in name resolution|resolving)\b",
        r"\b[Nn]etwork is unreachable\b",
        r"\bEAI_AGAIN\b",
        r"^npm (?:ERR!|error) code (?:ETIMEDOUT|ENOTFOUND|ECONNRESET)\b",
        r"\bregistry\b[^\n]*\bETIMEDOUT\b",
        r"\bETIMEDOUT\b[^\n]*\bregistry\b",
    ),
    # types and lint
    (
        "type_or_lint_error",
        r"\berror TS\d+: ",
        r"^\S+\.[mc]?[jt]sx?[:(]\d+[:,]\d+\)?(?::| -) error\b",
    ),
    (
        "type_or_lint_error",
        r"✖ \d+ problems?\b",
        r"^ +\d+:\d+ +(?:error|warning) +\S",
        r"\b[1-9]\d* errors?, \d+ warnings?\b",
    ),
    (
        "type_or_lint_error",
        r"^\S+\.pyi?:\d+(?::\d+)?: (?:[A-Z]{1,4}\d{2,4} |error: )",
        r"^(?:[A-Z]+\d{3,4}|invalid-syntax:) .*\n +--> ",
    ),
    (
        "type_or_lint_error",
        r"^(?:error\[[a-z-]+\]|[a-z-]+\[[A-Z]{1,4}\d+\]): .*\n +--> \S+\.pyi?:",
        r"^\S+\.go:\d+:\d+: .*\([\w-]+\)$",
        r"^[1-9]\d* issues?:$",
    ),
    (
        "type_or_lint_error",
        r"\blint/\w+/\w+",
        r"\bFound [1-9]\d* errors?\b",
        r"\b[1-9]\d* offenses? detected\b",
        r"\bCode style issues\b",
        r"\bsvelte-check found [1-9]",
    ),
    (
        "type_or_lint_error",
        r"\bWould reformat:",
        r"\bwould reformat\b",
        r"\bclippy::",
        r"^ *\S+ - error: .*\(report\w+\)",
        r"^In \S+ line \d+:$",
        r"\bfiles? (?:is|are) not formatted\b",
        r"^would be reformatted",
    ),
    # Terraform
    ("type_or_lint_error", r"^[│ ]*on \S+\.tf line \d+"),
    # compilers
    ("compile_error", r"^ERROR: failed to (?:solve|build): "),
    ("missing_file_in_command", r"\b(?P<path>go\.mod) file not found\b"),
    (
        "compile_error",
        r"^error\[E\d+\]",
        r"\bcould not compile\b",
        r"\bundefined reference to\b",
        r"\blinker command failed\b",
        r"\bUndefined symbols for\b",
    ),
    (
        "compile_error",
        r"^\S+\.(?:c|cc|cpp|cxx|h|hpp|m|mm|java|kt|swift|cu|zig|cs|rs|scala|proto)[:(]\d+[^\n]*\b(?:error"
        r"|fatal error)\b",
    ),
    (
        "compile_error",
        r"^(?:\./|\.\./)?\S+\.go:\d+:\d+: ",
        r"^# \S+\n\S+\.go:",
        r"\bno required module provides package\b",
        r"\bbuild constraints exclude all\b",
        r"\bimport cycle not allowed\b",
    ),
    (
        "compile_error",
        r"\bCompilation (?:failed|error)\b",
        r"\bFailed to compile\b",
        r"\bBUILD FAILED\b",
        r"\bBuild failed\b",
        r"\bCompileError\b",
        r"\bModule not found: Error\b",
    ),
    (
        "compile_error",
        r"\[vite\]: Rollup failed",
        r"\berror during build\b",
        r"✘ \[ERROR\]",
        r"^CMake Error\b",
        r"\bxcodebuild: error\b",
        r"\bIndentationError: ",
        r"^SyntaxError: ",
        r"^\S+SyntaxError: ",
    ),
    # programs that died
    (
        "missing_file_in_command",
        r"\bCannot find module '(?P<path>[^'\n]+)'\n[\s\S]{0,2000}?requireStack: \[\]",
    ),
    (
        "traceback",
        r"^(?:\w+ +)?\s*Traceback \(most recent call last\)",
        r"^Exception in thread",
        r"^panic: ",
        r"^goroutine \d+ \[",
        r"\bpanicked at\b",
        r"^\*\* \(\w[\w.]*\)",
    ),
    (
        "bad_pattern",
        r"\bregex parse error\b",
        r"^(?:\w?grep|sed|awk|rg)[^\n]*(?:[Ii]nvalid (?:regular expression|preceding|range|command code)|[Uu]nmatched "
        r"|parentheses not balanced|brackets \(\[ \]\) not balanced|unknown command|unknown option to|extra characters"
        r"|unterminated|undefined label|repetition-operator|command expects)",
    ),
    # usage
    (
        "missing_file_in_command",
        r"""\b(?:[Ff]ile|[Pp]ath|[Dd]irectory) ['\"](?P<path>[^'\"\n]+)['\"] does not exist\b(?! in)""",
    ),
    (
        "bad_option",
        r"\b(?:[Uu]nknown|[Uu]nrecogni[sz]ed|[Ii]llegal|[Uu]nexpected|[Uu]nsupported|[Nn]o such|[Bb]ad|invalid)"
        r" (?:shorthand |long |command-line )?(?:option|argument|flag|switch|parameter)s?\b",
        r"\bInvalid (?:option|flag|switch)\b",
    ),
    (
        "bad_option",
        r"\bflag provided but not defined\b",
        r"\bthe following arguments are required\b",
        r"\bthe following required arguments\b",
        r"\binvalid choice: ",
        r"^\S+: error: (?:argument |ambiguous option|one of the arguments)",
        r"\bMissing (?:argument|option|parameter) '",
        r"\bInvalid value for '",
        r"\bGot unexpected extra argument",
    ),
    (
        "bad_option",
        r"\b[Uu]nknown (?:sub-?command|command)\b",
        r"\bno such (?:sub-?)?command\b",
        r"\bis not a (?:git|docker|kubectl) command\b",
        r"\bunrecognized subcommand\b",
        r"\b(?:requires|expects|accepts) (?:at least |at most |exactly |between )?\w+ arg",
    ),
    (
        "bad_option",
        r"\A(?:[Uu]sage|USAGE): ",
        r"\boption requires an argument\b",
        r"\bmissing operand\b",
        r"\bmissing (?:file )?argument\b",
        r"\bunknown (?:primary|predicate)\b",
        r"\bUnknown JSON field\b",
    ),
    ("missing_file_in_command", r"^error: could not find `(?P<path>[^`\n]+)` in `"),
    (
        "missing_file_in_command",
        r"^(?:fatal|error): (?:can't open patch|cannot change to|could not open) '(?P<path>[^'\n]+)'"
        r"[^\n]*: No such file",
    ),
    ("file_exists", r"^fatal: destination path '(?P<path>[^'\n]+)' already exists"),
    # git
    ("merge_conflict", r"^CONFLICT \([^\n]*"),
    (
        "git_error",
        r"^(?:fatal|remote): ",
        r"^error: (?:pathspec|failed to push|Your local changes|cannot (?:pull|rebase|lock|delete)|src refspec"
        r"|could not apply|The following untracked|patch failed|No such remote|you need to resolve)",
    ),
    (
        "git_error",
        r"\bnothing to commit\b",
        r"\bno changes added to commit\b",
        r"\bnothing added to commit\b",
        r"\bnot a git repository\b",
        r"\bpre-commit hook\b",
        r"^husky - ",
        r"^- hook id: ",
    ),
    (
        "git_error",
        r"\bpull request\b[^\n]*\balready exists\b",
        r"\bNo commits between \S+ and\b",
        r"\bmust first push the current branch\b",
    ),
    # Node's programs that died
    (
        "traceback",
        r"^(?:Uncaught )?(?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?: [^\n]*\n(?:[^\n]*\n){0,12}? +at ",
        r"^(?:\S+\.rb:\d+:in |PHP (?:Fatal|Parse) error: |lua\d?[\d.]*: )",
        r" at \S+\.p[lm] line \d+\.$",
        r"^node:internal/",
        r"\bUnhandledPromiseRejection",
        r"\bSegmentation fault\b",
        r"^Node\.js v\d",
    ),
    # the rest
    (
        "http_error",
        r"\bConnection refused\b",
        r"\bECONNREFUSED\b",
        r"\bENOTFOUND\b",
        r"\bETIMEDOUT\b",
        r"\bconnect\b[^\n]*\btimed out\b",
        r"\bCannot connect to the Docker daemon\b",
        r"\bconnection to server\b[^\n]*\bfailed: ",
        r"\bERR_CONNECTION\w*",
    ),
    ("permission_denied", r"""\b[Pp]ermission denied(?:: |, \w+ )['\"](?P<path>[^'\"\n]+)['\"]"""),
    ("permission_denied", r"""['\"‘](?P<path>[^'\"’\n]+)['\"’]: (?:Permission denied|Operation not permitted)"""),
    ("permission_denied", r": (?P<path>[^\s:]+): (?:Permission denied|Operation not permitted)"),
    (
        "permission_denied",
        r"\b[Pp]ermission denied\b",
        r"\bOperation not permitted\b",
        r"\bEACCES\b",
        r"\bEPERM\b",
        r"\bread-only file system\b",
        r"\bRead-only file system\b",
    ),
    # The path stands behind the message, in quotes before it, or bare between colons.
    ("missing_file_in_command", r"""\b[Nn]o such file or directory(?:: |, \w+ )['\"](?P<path>[^'\"\n]+)['\"]"""),
    ("missing_file_in_command", r"\b(?:[Nn]o such file or|[Nn]ot a) directory: (?P<path>[^'\"\n]+)$"),
    (
        "missing_file_in_command",
        r"""['\"`‘](?P<path>[^'\"`’\n]+)['\"`’](?: for reading)?:(?: \[Errno \d+\])?"""
        r""" (?:[Nn]o such file or|[Nn]ot a) directory""",
    ),
    (
        "missing_file_in_command",
        r"^(?:[^\n:]+: )*?(?:(?:cannot|can't|[Cc]ould not) \w+:? (?:file )?|stat |lstat |open |chdir |rename )?"
        r"(?P<path>[^\s:]+)(?: to [^\s:]+)?(?:: (?:open|stat|Cannot open|IO error for operation on [^\n:]+))?"
        r"(?:: | \()(?:[Nn]o such file or|[Nn]ot a) directory",
    ),
    # with spaces in it
    (
        "missing_file_in_command",
        r"^(?:\S*sh: (?:line \d+: )?)?(?:cat|cd|cp|du|find|grep|head|ls|mv|rm|sed|tail|wc): (?P<path>[^\n:]+)"
        r": (?:[Nn]o such file or|[Nn]ot a) directory",
    ),
    ("missing_file_in_command", r"\bcan't (?:cd to|open file) (?P<path>[^\s'\"]+)"),
    ("missing_file_in_command", r"\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older) (?P<path>[^\s'\"]+) does not exist\b"),
    (
        "missing_file_in_command",
        r"\bCannot find module '(?P<path>\.{0,2}/[^'\n]+)'",
        r"^Could not find '(?P<missing>[^'\n]+)'",
    ),
    (
        "missing_file_in_command",
        r"\b[Nn]o such file or directory\b",
        r"\bENOENT\b",
        r"\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older)\b[^\n]{0,200} does not exist\b",
        r"\bno makefile found\b",
        r"\b[Nn]ot a directory\b",
    ),
    (
        "is_directory",
        r"^(?:\S*sh: (?:line \d+: )?)?[^\n:]+: (?:cannot \w+ )?['‘]?(?P<path>[^\n:'’]+)['’]?: [Ii]s a directory",
    ),
    ("is_directory", r"\b[Ii]s a directory\b", r"\bomitting directory '(?P<path>[^'\n]+)'"),
    # Only files and folders: much else can "already exist".
    ("file_exists", r"^\w+: (?:[^\n:'‘]*['‘])?(?P<path>[^\n:'’]+)['’]?: File exists"),
    ("file_exists", r"\b(?:EEXIST: file already exists, \w+|File exists:) '(?P<path>[^'\n]+)'"),
    ("file_exists", r"^(?:[^\n:]+: )?(?:mkdir|open|symlink|link) (?P<path>[^\s:]+): file exists"),
    ("file_exists", r": (?:file exists: (?P<path>[^\n]+)$|(?P<missing>[^\n:]+): cannot overwrite existing file)"),
    (
        "file_exists",
        r"\b(?:[Ff]ile|[Dd]irectory|[Ff]older|[Pp]ath|destination) ['\"`](?P<path>[^'\"`\n]+)['\"`] already exists\b",
    ),
    ("http_error", r"\breturned error: (?P<status>[45]\d\d)\b"),
    (
        "http_error",
        r"\bcurl: \(\d+\)",
        r"\bHTTP(?:/[\d.]+)?(?: Error)?:? (?P<status>[45]\d\d)\b",
        r"\bHTTP (?P<code>[45]\d\d)\b",
        r"\bstatus code:? (?P<number>[45]\d\d)\b",
    ),
    ("timeout", r"\btimed out\b", r"\bTimeoutError\b"),
    ("traceback", r"^\w+(?:Error|Exception): "),
)
