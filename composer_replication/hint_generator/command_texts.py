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
    ("shell_syntax", r"\bsyntax error near unexpected token\b", r"\bsyntax error: unexpected\b", r"\bSyntax error: "),
    (
        "shell_syntax",
        r"\bunexpected EOF while looking for matching\b",
        r"\bUnterminated quoted string\b",
        r"\bunterminated quoted\b",
    ),
    (
        "shell_syntax",
        r"^(?:\(eval\)|zsh|bash|sh|/bin/\w+):[^\n]*(?:parse error|no matches found|bad substitution|unmatched"
        r"|event not found|bad pattern|ambiguous redirect|condition expected|read-only variable"
        r"|unexpected end of file|not a valid identifier|bad option)",
    ),
    ("shell_syntax", r"\bYour bash command contained syntax errors\b"),
    (
        "command_not_found",
        r"^(?:[\w/.-]*sh|\(eval\)|env|/usr/bin/env"
        r"|xargs)?(?::? ?(?:line )?\d+)?:? ?(?P<name>[\w./@+-]+): (?:command )?not found$",
    ),
    (
        "command_not_found",
        r"\bcommand not found: (?P<name>\S+)",
        r"""^/?(?:usr/bin/)?env: [‘'\"]?(?P<program>[\w.-]+)[’'\"]?: No such file or directory""",
    ),
    (
        "command_not_found",
        r"(?:python[\d.]*|\bpy): No module named (?P<name>[\w.]+)$",
        r"\btarget shim binary not found\b",
    ),
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
    ("type_error", r"^usage: str_replace_editor\b"),
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
        r"^no tests ran in\b",
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
        r"\berror(?:\x1b\[[\d;]*m)* ?TS\d+: ",
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
        r"^[A-Z]{1,4}\d{3,4} .*\n +--> ",
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
        r"^\S+ - error: .*\(report\w+\)",
        r"^In \S+ line \d+:$",
        r"\bfiles? (?:is|are) not formatted\b",
        r"^would be reformatted",
    ),
    # compilers
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
    # usage
    (
        "bad_option",
        r"\b(?:unknown|unrecognized|unrecognised|invalid|illegal|unexpected|unsupported|no such"
        r"|bad) (?:shorthand |long |command-line )?(?:option|argument|flag|switch|parameter)s?\b",
    ),
    (
        "bad_option",
        r"\bflag provided but not defined\b",
        r"\bthe following arguments are required\b",
        r"\bthe following required arguments\b",
        r"\binvalid choice: ",
        r"\bUnknown argument:",
    ),
    (
        "bad_option",
        r"\bunknown (?:sub-?command|command)\b",
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
    (
        "bad_pattern",
        r"\bregex parse error\b",
        r"^(?:\w?grep|sed|awk|rg)[^\n]*(?:[Ii]nvalid (?:regular expression|preceding|range)|[Uu]nmatched "
        r"|parentheses not balanced|brackets \(\[ \]\) not balanced|unknown command|extra characters"
        r"|unterminated|undefined label|repetition-operator)",
    ),
    # git
    (
        "git_error",
        r"^(?:fatal|remote): ",
        r"^error: (?:pathspec|failed to push|Your local changes|cannot |src refspec|could not|unable to"
        r"|The following untracked|patch failed|No such remote|branch |you need to)",
    ),
    (
        "git_error",
        r"^CONFLICT \(",
        r"\bnothing to commit\b",
        r"\bno changes added to commit\b",
        r"\bnothing added to commit\b",
        r"\bnot a git repository\b",
        r"\bpre-commit hook\b",
        r"^hint: ",
    ),
    # programs that died
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
        "traceback",
        r"^(?:Uncaught )?(?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?: [^\n]*\n(?:[^\n]*\n){0,12}? +at ",
        r"^node:internal/",
        r"\bUnhandledPromiseRejection",
        r"\bSegmentation fault\b",
        r"^Node\.js v\d",
    ),
    # the rest
    (
        "permission_denied",
        r"\bPermission denied\b",
        r"\bOperation not permitted\b",
        r"\bEACCES\b",
        r"\bEPERM\b",
        r"\bread-only file system\b",
        r"\bRead-only file system\b",
    ),
    ("missing_file_in_command", r"""^[^\n]*?[\s'\"`‘](?P<path>[^\s:'\"`’‘]+)['\"`’]?: No such file or directory"""),
    (
        "missing_file_in_command",
        r"""\bNo such file or directory\b(?:: ?['\"`]?(?P<path>[^\s'\"`]+))?""",
        r"\bno such file or directory\b",
        r"\bENOENT\b",
        r"\bcan't open file\b",
        r"\b(?:[Ff]ile|[Pp]ath|[Dd]irectory|[Ff]older)\b[^\n]{0,200} does not exist\b",
        r"\bCannot find module\b",
        r"\bnot a directory\b",
        r"\bNot a directory\b",
    ),
    ("is_directory", r"\b[Ii]s a directory\b"),
    ("file_exists", r"\bFile exists\b", r"\balready exists\b"),
    (
        "http_error",
        r"\bcurl: \(\d+\)",
        r"\bHTTP(?:/[\d.]+)?(?: Error)?:? (?P<status>[45]\d\d)\b",
        r"\bHTTP (?P<code>[45]\d\d)\b",
        r"\bstatus code:? (?P<number>[45]\d\d)\b",
    ),
    (
        "http_error",
        r"\bConnection refused\b",
        r"\bECONNREFUSED\b",
        r"\bENOTFOUND\b",
        r"\bGraphQL: ",
        r"\bERR_CONNECTION\w*",
    ),
    ("timeout", r"\btimed out\b", r"\bTimeoutError\b", r"\bETIMEDOUT\b"),
    ("traceback", r"^\w*(?:Error|Exception): "),
)
