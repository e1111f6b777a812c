"""Errors of a call itself: its tool, its form, its arguments, a server's answer; and what is nobody's mistake here."""

from __future__ import annotations

from composer_replication.hint_generator.details import (
    HintContext,
    call_shape,
    closest,
    code,
    error_line,
    names,
    parameter_type,
    tool,
)
from composer_replication.hint_generator.errors.form import Answer, Begin, Output, others, says, student


@student(
    "tool_not_found",
    says(
        Begin.IF_SHORT,
        r"(?:No such|Unknown|Invalid|Unsupported|unknown|unsupported) (?:tool|function|call|custom tool call)\b"
        r"|(?:Tool|Function) \S+ (?:is )?not (?:found|available)|[Tt]ool not found|\S+ is not a valid tool",
    ),
    says(
        Begin.REFUSAL,
        r"No such tool|Unknown tool|unsupported (?:custom tool )?call:|Tool \S+ (?:is )?not (?:found|available)",
    ),
    says(
        Answer.UNKNOWN_TOOL,
        r"""\bNo such tool(?: available)?:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?""",
        r"""\b(?:Unknown|Invalid|Unrecognized|Undefined) (?:tool|function)\b(?: name)?:? ?[`'\"]?"""
        r"(?P<name>[\w.:/-]{0,80}\w)?",
        r"""\b(?:Tool|Function) [`'\"]?(?P<name>[\w.:/-]{0,80}\w)[`'\"]? (?:is )?"""
        r"(?:not found|does not exist|not available|not registered|unknown)",
        r"""\btool not found\b:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?""",
        r"\bunsupported (?:custom tool )?call: (?P<name>[\w.:/-]{0,80}\w)",
        r"""[`'\"]?(?P<name>[\w.:/-]{0,80}\w)[`'\"]? is not a valid tool""",
        r"\bMethod not found\b",
    ),
)
def hint_tool_not_found(ctx: HintContext) -> str:
    """Name the tools there are, and the one that was probably meant."""
    wanted = ctx.get("name") or ctx.get("tool_name")
    available = [name for name in ctx.get("available_tools") or [] if name != wanted]
    signature_of = {text.partition("(")[0]: text for text in ctx.get("signatures") or []}
    listed = [signature_of.get(name, name) for name in available]
    # Signatures say what each tool does: the student can choose, and a guess by spelling would only mislead it.
    guess = closest(wanted, available) if wanted and available and not signature_of else None
    meant = ctx.get("suggestion") or guess
    if meant is not None:
        first = f"There is no tool named {code(str(wanted))} here: use {code(signature_of.get(meant, meant), 160)}."
    elif wanted:
        first = f"There is no tool named {code(wanted)} here."
    else:
        first = "Call only tools that exist here, by their exact names."
    return f"{first} Available tools: {names(listed)}." if available else first


@student(
    "malformed_call",
    says(
        Begin.SURELY,
        r"Your (?:output|response) (?:could not be parsed|was not formatted correctly)"
        r"|Please always provide EXACTLY ONE action",
    ),
    says(
        Begin.REFUSAL,
        r"Your (?:output|response) (?:could not be parsed|was not formatted)|Please always provide EXACTLY ONE",
    ),
    says(
        Answer.FORM,
        r"\bYour (?:output|response) (?:could not be parsed|was not formatted correctly)",
        r"\bPlease (?:always )?provide EXACTLY ONE action\b",
        r"\binvalid (?:patch|hunk)\b|\bpatch rejected: empty|no hunks found|hunk [^\n]*is malformed",
    ),
)
def hint_malformed_call(ctx: HintContext) -> str:
    """Say how the action has to be written."""
    if "patch" in f"{ctx.get('tool_name', '')} {ctx.get('error_message', '')}":
        return (
            "Write the patch in the exact format, from `*** Begin Patch` to `*** End Patch`. "
            "Begin each line of a hunk with a space, `-` or `+`."
        )
    if ctx.get("name"):
        return f"Write the tool's name alone, {code(ctx['name'])}, and everything else into its arguments."
    return "Answer in the required format: exactly one complete action, written as the instructions show."


@student(
    "json_decode",
    says(Begin.SURELY, r"failed to parse function arguments"),
    says(Begin.REFUSAL, r"failed to parse function arguments"),
    says(
        Answer.JSON,
        r"\bJSONDecodeError\b|\bfailed to parse function arguments\b",
        r"\bExpecting (?:value|property name[^:\n]*|'[,:]' delimiter): line \d+",
        r"\b(?:Unterminated string|Invalid control character|Invalid \\escape)[^\n]*line \d+",
        r"\bUnexpected (?:token|end of JSON|non-whitespace)[^\n]*JSON\b|\bUnexpected end of JSON",
        r"\b(?:is not|isn't|not|invalid|malformed) (?:a )?(?:valid )?JSON\b",
        r"\b(?:could not|failed to|error|cannot) (?:be )?pars(?:e|ed|ing) (?:the )?(?:tool )?(?:call )?"
        r"(?:arguments|input)\b",
    ),
)
def hint_json_decode(ctx: HintContext) -> str:
    """Say what valid arguments look like."""
    shape = call_shape(ctx.get("tool_schema"))
    if shape is not None:
        return f"Reminder: tool arguments must be valid JSON. Call {tool(ctx)} with one object such as {shape}."
    called = f"Call {tool(ctx)} with" if ctx.get("tool_name") else "Send"
    return (
        "Reminder: tool arguments must be valid JSON. "
        f"{called} one complete object: double-quoted keys, newlines and quotes inside strings escaped."
    )


@student(
    "type_error",
    says(Begin.SURELY, r"Invalid `\w+` parameter|Parameter `\w+` is required"),
    says(Begin.IF_SHORT, r"Missing required (?:parameter|argument)|\d+ validation errors? for \w"),
    says(Begin.REFUSAL, r"InputValidationError|Missing required (?:parameter|argument)"),
    says(
        Answer.FORM,
        r"\bInputValidationError\b",
        r"\bfailed to parse function arguments: (?:missing field|unknown field|invalid type|invalid value)",
    ),
    says(
        Answer.SCHEMA,
        r"\d+ validation errors? for \w",
        r"""\b(?:required|unexpected) parameters? [`'\"]""",
        r"""\bparameter [`'\"][\w.-]+[`'\"] (?:type )?is (?:expected|required|missing)""",
        r"\bMissing required (?:parameter|argument|field|propert)",
        r"\bis a required property\b|\bAdditional properties are not allowed\b|\bis not of type '",
        r"\bmust have required property\b|\bmust NOT have additional properties\b",
        r"\"code\":\s*\"(?:invalid_type|unrecognized_keys|invalid_enum_value|invalid_union|invalid_value)\"",
        r"\bmissing \d+ required (?:positional|keyword-only) argument|\bunexpected keyword argument\b",
        r"\bwrong arguments?\b|\binvalid (?:tool )?(?:arguments?|params?|parameters?)\b(?! path)",
        r"""\bInvalid [`'\"](?!path)[\w.-]+[`'\"] parameter\b""",
        r"\A(?:TypeError|ValidationError|ZodError)\b",
    ),
    says(Output.INLINE_CODE, r"^usage: str_replace_editor\b"),
)
def hint_type_error(ctx: HintContext) -> str:
    """Say which parameters the tool takes."""
    schema = ctx.get("tool_schema")
    called = tool(ctx)
    orders = []
    if missing := ctx.get("missing_parameters"):
        orders.append(f"always give {names(missing)}")
    if unexpected := ctx.get("unexpected_parameters"):
        orders.append(f"leave out {names(unexpected)}")
    for name, expected in (ctx.get("expected_types") or {}).items():
        orders.append(f"give {code(name)} as {parameter_type(schema, name) or expected}")
    shape = f"{called} takes {code(ctx['signature'], 200)}" if ctx.get("signature") else None
    if shape is None and (skeleton := call_shape(schema)) is not None:
        shape = f"{called} takes {skeleton}"
    if orders:
        first = f"When you call {called}, {_joined(orders)}."
        return f"{first} {_capital(shape)}." if shape else first
    if shape:
        return f"{_capital(shape)}. Use these parameter names and types exactly."
    line = error_line(ctx)
    if line:
        return f"Match the arguments of {called} to its schema: {line}."
    return f"Match the arguments of {called} to its schema: every required parameter, no others, the right types."


@student(
    "runtime_error",
    says(Begin.SURELY, r"(?:exec_command|write_stdin) failed\b|ErrorObservation"),
    says(
        Begin.IF_SHORT,
        r"(?:ERROR|Error|error):\s|Error (?:executing|calling|running|while|parsing)\b"
        r"|(?:\w+\.)*\w*(?:Error|Exception):\s|E[A-Z]{3,12}: \w|\*\*ERROR\*\*|ERROR\b.{0,40}: ",
    ),
    is_vague=True,
)
def hint_runtime_error(ctx: HintContext) -> str:
    """Say what to avoid, in the tool's own words."""
    line = error_line(ctx)
    if line:
        return f"Called like this, {tool(ctx)} would answer: {line}. Choose a call that avoids it."
    return f"Check that what {tool(ctx)} needs is in place before you call it, and that its arguments are right."


@student("repeated_failure")
def hint_repeated_failure(ctx: HintContext) -> str:
    """Say that the same call fails again, and what its first failure asked for."""
    first = f"Do not make the same call{_of_tool(ctx)} again unchanged: it fails the same way."
    # Imported here: it looks kinds up in the table that this is a part of.
    from composer_replication.hint_generator.layers import dispatch

    original = ctx.get("original_kind")
    advice = dispatch(original, ctx) if original and original != "repeated_failure" else None
    if advice is None:
        line = error_line(ctx)
        return f"{first} Change what makes it fail: {line}." if line else f"{first} Change it, or take another way."
    # Two sentences are the limit, and the first of the original advice carries it.
    return f"{first} {advice.partition('. ')[0].rstrip('.')}."


@student(
    "unknown_name",
    says(Begin.IF_SHORT, r"Unknown (?:skill|agent|task)\b"),
    says(
        Answer.REST,
        r"\bUnknown (?:skill|agent|task|slash command|command|subagent|resource|workflow|process|session)\b"
        r"""(?: type| id)?:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?""",
        r"""\b(?:Agent(?: type)?|Skill|Task|Shell|Cell|Server|Session)(?: with ID)? [`'\"]?"""
        r"""(?P<name>[\w.:/-]{0,80}\w)[`'\"]? (?:was )?(?:not found|does not exist|is not running)""",
        r"\bNo (?:task|shell|agent|skill|background process|session|cell)s? (?:was )?found\b"
        r"(?: (?:with|for) ID:? ?(?P<name>[\w.:/-]{0,80}\w))?",
        r"\b(?:Task|Skill|Agent) not found\b(?:: ?(?P<name>[\w.:/-]{0,80}\w))?",
    ),
    says(
        Output.TARGET,
        r"""\bMissing script: ['\"]?(?P<name>[^'\"\s]+)|\bNo rule to make target [`'‘](?P<name2>[^'’\n]+)""",
        r"""\bno tasks? (?:named )?[`'\"]?(?P<name>[\w:.-]+)[`'\"]? (?:found|in)\b"""
        r"|^error: Script not found \"(?P<name2>[^\"]+)",
        r"\bTask '(?P<name>[^'\n]+)' not found\b",
    ),
    says(
        Output.SELECTED,
        r"^ERROR: not found: (?P<name>\S+::\S+)",
        r"^No test files found[^\n]*\s+filter: (?P<name>[^\n]+)",
        r"^No tests found\b[\s\S]{0,3000}?^Pattern: (?P<name>[^\n]+) - 0 matches",
        r"^error: no \w+ target named `(?P<name>[^`\n]+)`",
    ),
)
def hint_unknown_name(ctx: HintContext) -> str:
    """Name what there is."""
    wanted, available = ctx.get("name"), ctx.get("available_names") or []
    first = f"There is no {code(wanted)} here" if wanted else "Use only names that exist here"
    meant = ctx.get("suggestion") or (closest(wanted, available) if wanted and available else None)
    first += f": use {code(meant)}." if meant else "."
    if available:
        return f"{first} Available: {names(available)}."
    return first if meant else f"{first} List what exists, and use one of those names."


@student(
    "http_error",
    says(
        Answer.SERVER,
        r"\bstatus (?:code:? )?(?P<status>4\d\d)\b|\bHTTP(?:/[\d.]+)?(?: Error| status)?:? (?P<status2>4\d\d)\b",
        r"\A(?P<status>4\d\d) (?:Bad Request|Unauthorized|Forbidden|Not Found|Gone)\b",
        r"\bunable to (?:fetch|verify if domain)\b|\bENOTFOUND\b|\bECONNREFUSED\b|\bECONNRESET\b|\bInvalid URL\b",
    ),
    says(
        Output.CONNECTION,
        r"\bConnection refused\b|\bECONNREFUSED\b|\bENOTFOUND\b|\bETIMEDOUT\b|\bconnect\b[^\n]*\btimed out\b"
        r"|\bCannot connect to the Docker daemon\b|\bconnection to server\b[^\n]*\bfailed: |\bERR_CONNECTION\w*",
    ),
    says(
        Output.HTTP,
        r"\breturned error: (?P<status>[45]\d\d)\b",
        r"\bcurl: \(\d+\)|\bHTTP(?:/[\d.]+)?(?: Error)?:? (?P<status>[45]\d\d)\b|\bHTTP (?P<status2>[45]\d\d)\b"
        r"|\bstatus code:? (?P<status3>[45]\d\d)\b",
    ),
)
def hint_http_error(ctx: HintContext) -> str:
    """Say what the status means for the address."""
    status = ctx.get("status")
    if status in (401, 403, 407):
        return f"That address answers {status}: it needs access that you do not have. Use a public source instead."
    if status in (404, 410):
        return f"That address answers {status}: there is no such page. Find the right address before you fetch it."
    line = error_line(ctx)
    if line and status is not None and 400 <= status < 500:
        return f"The server would refuse this request: {line}. Check what it is given."
    if line:
        return f"Check that the address is right and that its server answers: {line}."
    return "Check that the address is right and that its server answers before you rely on it."


@student(
    "mcp_error",
    says(Begin.SURELY, r"tool call error: |MCP error -?\d+|JSON-RPC error|### Error\b"),
    says(Answer.SERVER, r"\Atool call error: |\A### Error\b|\bMCP error -?\d+|\bJSON-RPC error\b"),
    is_vague=True,
)
def hint_mcp_error(ctx: HintContext) -> str:
    """Say what the server needs, in its own words."""
    line = error_line({"error_message": str(ctx.get("error_message") or "").removeprefix("### Error").strip()})
    if line:
        return f"Called like this, {tool(ctx, 'the server')} would answer: {line}. Look at the current state first."
    return f"Look at the current state before you call {tool(ctx, 'the server')}, and use only what it shows."


others(
    "user_rejected",
    says(
        Begin.SURELY,
        r"The user doesn.t want to (?:proceed|take)|Claude requested permissions? to"
        r"|(?:exec command|patch) rejected by user",
    ),
    says(
        Answer.OTHERS,
        r"\AThe user doesn.t want to (?:proceed with|take) this (?:tool use|action)",
        r"\AClaude requested permissions? to\b",
        r"\APermission (?:to use|for this)\b[\s\S]{0,2000}?\bdenied\b",
        r"\A(?:This command|\S+ tool call) requires approval",
        r"\ADenied by \w+ policy",
        r"\A[^\n]{0,80}\b(?:rejected|denied|declined) by (?:the )?user\b(?! approval settings)",
        r"\A(?:The )?user (?:has )?(?:rejected|denied|declined|refused|cancelled|canceled)\b",
    ),
)


others(
    "parallel_cancelled",
    says(Begin.SURELY, r"Sibling tool call errored|Cancelled: parallel tool call"),
    says(Answer.OTHERS, r"\ASibling tool call errored", r"\ACancelled: parallel tool call"),
)


others(
    "interrupted",
    says(Begin.SURELY, r"\[Request interrupted by user|aborted by user"),
    says(Begin.IF_SHORT, r"Request was aborted\.?\s*\Z"),
    says(
        Answer.OTHERS,
        r"\A\[?Request interrupted by user",
        r"\[Request interrupted by user[^\]\n]*\]\s*\Z",
        r"\A(?:aborted|interrupted|cancelled|canceled) by (?:the )?user",
        r"\A(?:Tool (?:execution|call|use) |The (?:operation|tool call|request) )was (?:interrupted|aborted)",
        r"\A(?:Command was aborted before completion|Tool permission request failed|AbortError)",
        r"\A(?:API Error: )?Request was aborted\b",
    ),
)


others(
    "harness_broken",
    says(Begin.SURELY, r"\[?Tool result missing due to internal error"),
    says(
        Answer.OTHERS,
        r"\A\[?Tool result missing due to internal error",
        r"\A[^\n]{0,300}(?:\bENOSPC\b|\bNo space left on device\b)",
        r"\A[^\n]{0,200}\bposix_spawn\b|\Abwrap: ",
        r"\A[^\n]{0,80}\bspawn [^\n]{0,200}\bE(?:NOENT|ACCES|AGAIN|2BIG|MFILE|NOMEM|BADF)\b",
        r"\A(?:Streaming fallback|Stream closed|Tool permission stream closed|EMFILE\b)",
        r"\A[^\n]{0,300}(?:was deleted|working directory [^\n]*no longer exists)[^\n]*restart",
        r"\A(?:MCP error -32000: )?(?:Connection closed|Not connected)\b",
        r"\A[^\n]{0,80}(?:Runtime|Environment|Sandbox)\w*(?:Disconnected|Died|Unavailable)\w*",
    ),
    says(Output.OUTSIDE, r"\bNo space left on device\b|\bENOSPC\b"),
)


others(
    "hook_blocked",
    says(Begin.SURELY, r"(?:Pre|Post)ToolUse:\S* hook"),
    says(
        Answer.OTHERS,
        r"\A(?:Pre|Post)ToolUse:\S* (?:\[[^\n]*\] )?hook\b",
        r"\A[^\n]{0,80}\b(?:blocked by|hook error:|hook blocked)[^\n]{0,40}\b(?:hook|\[)",
    ),
)


# A server that is down, overloaded or limiting, or a network that is. The group `api` tells what a harness says of its
# own model from what a command prints of a server.
others(
    "service_unavailable",
    says(Begin.IF_SHORT, r"API Error: \S|Connection error\.?\s*\Z"),
    says(
        Answer.OTHERS,
        r"\A(?P<api>API Error): (?P<status>408|429|5\d\d)\b",
        r"\A(?P<api>(?:API Error: )?Connection error)\.?\s*\Z",
        r"\A(?:API Error: )?(?:Overloaded|overloaded_error|rate_limit_error)",
        r"\A[^\n]{0,200}\bstatus (?:code:? )?(?P<status>429|5\d\d)\b",
        r"\A[^\n]{0,80}\bHTTP(?:/[\d.]+)?(?: Error| status)?:? (?P<status>429|5\d\d)\b",
    ),
    says(
        Output.NETWORK,
        r"\b[Cc]ould not resolve (?:host|proxy)|\bTemporary failure (?:in name resolution|resolving)\b"
        r"|\b[Nn]etwork is unreachable\b|\bEAI_AGAIN\b|^npm (?:ERR!|error) code (?:ETIMEDOUT|ENOTFOUND|ECONNRESET)\b"
        r"|\bregistry\b[^\n]*\bETIMEDOUT\b|\bETIMEDOUT\b[^\n]*\bregistry\b",
    ),
)


def _of_tool(ctx: HintContext) -> str:
    return f" of {tool(ctx)}" if ctx.get("tool_name") else ""


def _joined(orders: list[str]) -> str:
    return ", and ".join(orders) if len(orders) < 3 else ", ".join(orders[:-1]) + f", and {orders[-1]}"


def _capital(text: str) -> str:
    return text[:1].upper() + text[1:]
