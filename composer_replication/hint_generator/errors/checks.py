"""Errors that a test run, a checker, a compiler or a crash reports, mostly of what an earlier turn wrote."""

from __future__ import annotations

from composer_replication.hint_generator.details import HintContext, error_line
from composer_replication.hint_generator.errors.form import (
    CRASH,
    CUT,
    RUN,
    Begin,
    Output,
    outcome,
    prints,
    says,
    student,
)


@outcome(
    "test_failure",
    says(Output.GO_TEST, r"^\s*--- FAIL: (?P<test>\S+)"),
    says(
        Output.TESTS,
        r"^FAIL(?:\t\S+|$)|^FAILED (?P<test>\S+::\S+)|^ERROR (?:collecting )?(?P<path>\S+\.py)\b|^E   +\S",
        r"^=+ .*\b\d+ (?:failed|errors?)\b.*=+$|\b\d+ failed, \d+ (?:passed|skipped)|^\d+ failed\b",
        r"^FAILED \((?:failures|errors)=|^(?:FAIL|ERROR): (?P<test>test\w*)|^test result: FAILED"
        r"|^test (?P<test2>\S+) \.\.\. FAILED",
        r"^\s*(?:Tests?|Test Suites|Test Files):? +\d+ failed|^\s*(?:FAIL|❯) +\S+\.(?:test|spec)\.\w+|^\s*\d+ failing$"
        r"|^\s*\d+ fail$",
        r"\b\d+ (?:tests|examples|runs), (?:\d+ assertions, )?[1-9]\d* failures?|^# fail [1-9]|^not ok \d+"
        r"|\bTEST FAILED\b|^✖ failing tests",
        r"^Executed \d+ tests?, with [1-9]\d* failures?|^Failed! +- Failed: +[1-9]|Tests run: \d+, Failures: [1-9]",
    ),
    prints(
        RUN,
        # pytest, unittest, tox
        r"^=*\s*(?:\d+ \w+, )*[1-9]\d* (?:failed|errors?)(?:, \d+ \w+)* in \d[\d.]*s\b",
        *(r"^(?:\[ *\d+%\] )?(?:FAILED|ERROR) \S+\.py\b", r"^\S+\.py::\S+ (?:FAILED|ERROR)\b"),
        *(r"^\S+\.py [.sxX]*[FE][.FEsxX]*(?: +\[ *\d+%\])?$", r"^[.sxX]*F[.FEsxX]* +\[ *\d+%\]$"),
        *(r"^=+ (?:FAILURES|ERRORS) =+$", r"^!+ (?:Interrupted|stopping after)\b"),
        *(r"^E {3,}(?:assert |[\w.]*(?:Error|Exception)\b)", r"^FAILED \((?:failures|errors)="),
        *(r"^(?:FAIL|ERROR): \w+ \([\w.]+\)", r"^evaluation failed :\("),
        r"\b[Cc]overage [^\n]*(?:not (?:met|reached)|does not meet|is less than)",
        # Go, Rust
        *(r"^(?:---|===) FAIL: ", r"^FAIL(?:\t\S+|$)", r"^(?:test|Suite) result: FAILED", r"^test \S+ \.\.\. FAILED$"),
        # JavaScript
        *(r"^Tests?(?: Suites| Files)?:? +(?:\d+ \w+[, |]*)*\b[1-9]\d* failed\b", r"^FAIL  ?\S+[./\\]\S+", r"^✕ \S"),
        *(r"^[×✗] [^\n]* \d+ ?ms$", r"^[❯×] \S+\.(?:test|spec)\.\w+ .*\b[1-9]\d* failed", r"^\(fail\) "),
        *(r"(?:^)[ \t]+[1-9]\d* fail(?:ing|ed)?$", r"^at Context\.<anonymous> "),
        *(r"^✖ (?:failing tests:|[^\n]* \([\d.]+ ?ms\)$)", r"^(?:#|ℹ) fail +[1-9]", r"^not ok \d+[^\n]*"),
        *(r"^FAILED \| \d+ passed \| [1-9]", r"^⎯+ (?:Failed|Unhandled|Startup) "),
        *(r"^● (?:Test suite failed to run|Unrecognized CLI|[^\n]* › )", r"^\d+\) \[\w[^\]\n]*\] › "),
        # others
        r"\b\d+ (?:examples?|tests?|specs?|runs|scenarios?), (?:\d+ (?:assertions|passed), )*[1-9]\d* fail(?:ures?|ed)",
        *(r"\b\d+ runs, \d+ assertions, \d+ failures, [1-9]\d* errors", r"^(?:FAILURES|ERRORS)!$"),
        *(r"^rspec \./\S+:\d+", r"\b[1-9]\d* (?:out )?of \d+ (?:tests )?failed\b|\([1-9]\d* FAILED\)"),
        r"\bscenarios? \([1-9]\d* failed|\bpassed, [1-9]\d* failed, \d+ skipped",
        r"\| +[1-9]\d* failed\b|\[ FAIL [1-9]|^FAIL! |^Result: FAIL$",
        r"^(?:\[  FAILED  \]|Failed \S+ \[\d|\(\d+ failures?\)$)",
        r"^Test Case [^\n]* failed \(|\*\*\* ?(?:Test Failed|FAILED) ?\*\*\*",
        r"^Tests: \d+, Assertions: \d+,.*(?:Failures|Errors): [1-9]",
        *(r"^Executed \d+ tests?, with [1-9]\d* failures?", r"^\*\* (?:BUILD|TEST|ARCHIVE|ANALYZE|CLEAN) FAILED \*\*"),
        *(r"^(?:Testing failed|The following build commands failed):", r"^Failed! +- Failed: +[1-9]"),
        r"\bTests run: \d+, (?:Failures: [1-9]|Failures: \d+, Errors: [1-9])",
        *(r"\btests passed, [1-9]\d* tests? failed out of|^The following tests FAILED:", r"^//\S+ +FAILED in "),
        *(r"\bSome tests failed\.$", r"^✘ Test "),
    ),
)
def hint_test_failure(ctx: HintContext) -> str:
    return _write_so_that(ctx, "the tests pass", "they would stop at")


@outcome(
    "type_or_lint_error",
    says(
        Output.CHECKS,
        r"\berror TS\d+: |^\S+\.[mc]?[jt]sx?[:(]\d+[:,]\d+\)?(?::| -) error\b",
        r"✖ \d+ problems?\b|^ +\d+:\d+ +(?:error|warning) +\S|\b[1-9]\d* errors?, \d+ warnings?\b",
        r"^\S+\.pyi?:\d+(?::\d+)?: (?:[A-Z]{1,4}\d{2,4} |error: )|^(?:[A-Z]+\d{3,4}|invalid-syntax:) .*\n +--> ",
        r"^(?:error\[[a-z-]+\]|[a-z-]+\[[A-Z]{1,4}\d+\]): .*\n +--> \S+\.pyi?:|^\S+\.go:\d+:\d+: .*\([\w-]+\)$"
        r"|^[1-9]\d* issues?:$",
        r"\blint/\w+/\w+|\bFound [1-9]\d* errors?\b|\b[1-9]\d* offenses? detected\b|\bCode style issues\b"
        r"|\bsvelte-check found [1-9]",
        r"\bWould reformat:|\bwould reformat\b|\bclippy::|^ *\S+ - error: .*\(report\w+\)|^In \S+ line \d+:$"
        r"|\bfiles? (?:is|are) not formatted\b|^would be reformatted",
        r"^[│ ]*on \S+\.tf line \d+",
    ),
    prints(
        RUN,
        *(r"^Diff in \S+:\d+", r"\berror TS\d+: "),
        r"^Found [1-9]\d* (?:errors?|diagnostics?|known vulnerabilit\w+|dependency issues)\b[^\n]*",
        r"^[1-9]\d* errors?, \d+ warnings?\b",
        r"^✖ \d+ problems? \([1-9]\d* errors?\b|^[1-9]\d* errors? and \d+ warnings? potentially fixable",
        *(r"^(?:\[\*\] \d+ fixable with|No fixes available|Errors  Files$)", r"^error (?:-|•) \S"),
        *(r"\bfound too many warnings \(maximum", r"^Oops! Something went wrong!", r"^\d+:\d+ +(?:error|Error:) +\S"),
        *(r"^\S+\.pyi?:\d+(?::\d+)?: [A-Z]{1,4}\d{2,4}:? ", r"^[A-Z]{1,4}\d{3,4} .*\n +--> \S+:\d+:\d+"),
        *(r"^[Ww]ould reformat[: ]", r"^[1-9]\d* files? would be reformatted", r"\bCode style issues (?:found|in)\b"),
        *(r"^[1-9]\d* issues?(?::$| found\.)", r"^svelte-check found [1-9]\d* errors?", r"^In \S+ line \d+:$"),
        *(r"\b[1-9]\d* offenses? detected\b", r"\bSome errors were emitted while\b"),
        r"^\S[^\n]*\.{4,}Failed$|^- (?:exit code: [1-9]|files were modified by this hook)",
        r"^husky - \S+ (?:script|hook) (?:failed|exited)|\[FAILED\]$|^✖ +found [1-9]\d* problems|^🥊 ",
        r"\bMD\d{3}/[\w-]+|:\d+ (?:DL|SC)\d{4} |^\S+\.ya?ml:\d+:\d+: ",
        *(r"^Your code has been rated at (?:-|\d\.)|\b[1-9]\d* serious in \d", r"^# npm audit report"),
    ),
)
def hint_type_or_lint_error(ctx: HintContext) -> str:
    return _write_so_that(ctx, "the checker accepts it", "it would report")


@outcome(
    "compile_error",
    says(Output.GO_BUILD, r"^FAIL\s+\S+ \[(?:build|setup) failed\]"),
    says(Output.IMAGE, r"^ERROR: failed to (?:solve|build): "),
    says(
        Output.BUILD,
        r"^error\[E\d+\]|\bcould not compile\b|\bundefined reference to\b|\blinker command failed\b"
        r"|\bUndefined symbols for\b",
        r"^\S+\.(?:c|cc|cpp|cxx|h|hpp|m|mm|java|kt|swift|cu|zig|cs|rs|scala|proto)[:(]\d+[^\n]*\b"
        r"(?:error|fatal error)\b",
        r"^(?:\./|\.\./)?\S+\.go:\d+:\d+: |^# \S+\n\S+\.go:|\bno required module provides package\b"
        r"|\bbuild constraints exclude all\b|\bimport cycle not allowed\b",
        r"\bCompilation (?:failed|error)\b|\bFailed to compile\b|\bBUILD FAILED\b|\bBuild failed\b|\bCompileError\b"
        r"|\bModule not found: Error\b",
        r"\[vite\]: Rollup failed|\berror during build\b|✘ \[ERROR\]|^CMake Error\b|\bxcodebuild: error\b"
        r"|\bIndentationError: |^SyntaxError: |^\S+SyntaxError: ",
    ),
    prints(
        RUN,
        *(r"\[(?:build|setup) failed\]$", r"^(?:vet: )?\S+\.go:\d+:\d+: \S"),
        *(r"\bno required module provides package\b", r"^package \S+ is not in std\b", r"^exit status [1-9]\d*$"),
        r"^error\[E\d{4}\]",
        r"^error: (?:could not compile|test failed|aborting due to|no such command)|^warning: build failed, waiting",
        r"^(?:For more information about this error|Some errors have detailed explanations)",
        *(r"^error(?:\[[\w:]+\])?: [^\n]*\n +--> \S+:\d", r"(?:^)\S+:\d+(?::\d+)?: (?:fatal )?error: "),
        *(r"^e: (?:file://)?/\S", r"\b(?:collect2|ld|cc1|cc1plus|clang|xcrun|xcodebuild): (?:fatal )?error: "),
        *(r"\bundefined reference to\b", r"\blinker command failed\b", r"^g?make(?:\[\d+\])?: \*\*\* "),
        r"^CMake Error\b|^-- Configuring incomplete, errors occurred",
        r"^compilation terminated\.|^[1-9]\d* (?:warnings? and \d+ )?errors? generated\.",
        *(r"^ninja: (?:build stopped|error)", r"^BUILD (?:FAILED|FAILURE)\b"),
        *(r"^FAILURE: Build failed\b|^> Get more help at https://help\.gradle", r"^(?:> Task \S+|\S+ > .*) FAILED$"),
        *(r"\): error [A-Z]{2,6}\d+: ", r"^(?:Build FAILED\.|[1-9]\d* Error\(s\)$)", r"^❌ +\S+:\d+:\d+: "),
        *(r"^ERROR: Build did NOT complete", r"\bbuild constraints exclude all Go files|\bimport cycle not allowed\b"),
        r"^-- [A-Z ]{4,} -+ \S+\.elm|^\S+\.rb:\d+: syntax error|^! (?:LaTeX Error|Undefined control|Emergency stop)",
        *(r'^File "[^"\n]+", line \d+, characters', r"^build finished with problems|\bwarnings in strict mode"),
        r"^(?:== Compilation error in file|Compilation failed due to|\*\* \(Mix\) )",
    ),
)
def hint_compile_error(ctx: HintContext) -> str:
    return _write_so_that(ctx, "it compiles", "the compiler would report")


@student(
    "traceback",
    says(Begin.SURELY, r"Traceback \(most recent call last\):|-{20,}\n\w+ +Traceback \(most recent call last\)"),
    says(Output.SCRIPT, r"^[^\s:]+\.(?:ba|z)?sh: line \d+: "),
    says(Output.INLINE_CODE, r'^(?: +File "<(?:string|stdin)>", line \d+\n|\[eval\]:\d+\n)(?:[^\n]*\n){1,4}\w*Error: '),
    says(
        Output.CRASH,
        r"^(?:\w+ +)?\s*Traceback \(most recent call last\)|^Exception in thread|^panic: |^goroutine \d+ \["
        r"|\bpanicked at\b|^\*\* \(\w[\w.]*\)",
    ),
    says(
        Output.DIED,
        r"^(?:Uncaught )?(?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?: [^\n]*\n(?:[^\n]*\n){0,12}? +at "
        r"|^(?:\S+\.rb:\d+:in |PHP (?:Fatal|Parse) error: |lua\d?[\d.]*: )| at \S+\.p[lm] line \d+\.$|^node:internal/"
        r"|\bUnhandledPromiseRejection|\bSegmentation fault\b|^Node\.js v\d",
    ),
    says(Output.LAST, r"^\w+(?:Error|Exception): "),
    prints(
        CRASH,
        *(r"^Traceback \(most recent call last\):\n +\S", r"^(?:[a-z_]\w*\.)*(?:Syntax|Indentation|Tab)Error: "),
        r"^(?:╭─+|\w+ +) Traceback \(most recent call last\)",
        r"^\S*[Pp]ython[\d.]*: (?:can't open file|No module named|Error while finding module)",
        *(r"^Exception in thread \"", r"^panic: ", r"^fatal error: (?:all goroutines|runtime|stack)"),
        *(r"^thread '[^'\n]*' (?:\(\d+\) )?panicked at [^\n]*(?:\n[^\n]*)?", r"^note: [^\n]*run with `RUST_BACKTRACE="),
        *(r"^node:internal/", r"^Node\.js v\d+\."),
        r"^(?:Uncaught )?(?:[A-Z]\w*)?(?:Error|Exception)(?: \[\w+\])?: [^\n]*\n(?:[^\n]*\n){0,6}? {4}at \S",
        r"^(?:Error: Cannot find module | {4}at [^\n]*(?:node:internal|node_modules)/)",
        r"\bSegmentation fault\b|: Assertion [`'][^\n]*' failed\.",
        *(r"^(?:Fatal Python error|FATAL ERROR): |\(core dumped\)$", r"^\*\* \(\w*Error\) "),
        *(r"^(?:PHP )?(?:Fatal|Parse) error: ", r"^\S+\.rb:\d+:in [^\n]* \([A-Z]\w*(?:::\w+)*\)$"),
    ),
    prints(
        CUT,
        r'^  File "[^"\n]+", line \d+(?:, in \S+)?$',
        r"(?:\A|^[ \t]+\S[^\n]*\n)(?:[a-z_]\w*\.)*[A-Z]\w*(?:Error|Exception): \S",
    ),
)
def hint_traceback(ctx: HintContext) -> str:
    """Name what a program dies of: an outcome where it names a file's line, since whoever wrote that line erred."""
    if ctx.get("reported_by"):
        return _write_so_that(ctx, "it runs", "it would stop with")
    line = error_line(ctx)
    if line:
        return f"The program would stop with {line}. Prevent this before you run it."
    return "Check the inputs and imports of the program before you run it: it would stop with an exception."


# of a CI system
outcome("failing_checks")


# No failure at all: grep, test, diff and the like say "no" or "different" with an exit code of 1.
outcome(
    "no_match",
    says(
        Output.TESTS,
        r"^(?:=+ )?no tests ran in\b|^(?:=+ )?\d+ deselected in\b|^NO TESTS RAN\b"
        r"|^(?:Error: )?No test(?: file)?s found\b",
    ),
)


def _write_so_that(ctx: HintContext, works: str, otherwise: str) -> str:
    """For the turn that wrote what fails, not for the one that ran into it."""
    line = error_line(ctx)
    return f"Write this so that {works}: {otherwise} {line}." if line else f"Write this so that {works}."
