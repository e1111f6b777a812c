"""The texts by which harnesses and their tools say that a call failed, in the order in which they are tried.

Named groups of a pattern become details of the error.
"""

from __future__ import annotations

import re

from composer_replication.hint_generator.rules import Rules

# Not the student's mistake. They stand at the beginning of a result, whatever the tool.
OTHERS_TEXTS = Rules(
    re.IGNORECASE,
    ("user_rejected", r"\AThe user doesn.t want to (?:proceed with|take) this (?:tool use|action)"),
    ("user_rejected", r"\AClaude requested permissions? to\b"),
    ("user_rejected", r"\APermission (?:to use|for this)\b[\s\S]{0,2000}?\bdenied\b"),
    ("user_rejected", r"\A(?:This command|\S+ tool call) requires approval"),
    ("user_rejected", r"\ADenied by \w+ policy"),
    ("user_rejected", r"\A[^\n]{0,80}\b(?:rejected|denied|declined) by (?:the )?user\b(?! approval settings)"),
    ("user_rejected", r"\A(?:The )?user (?:has )?(?:rejected|denied|declined|refused|cancelled|canceled)\b"),
    ("parallel_cancelled", r"\ASibling tool call errored"),
    ("parallel_cancelled", r"\ACancelled: parallel tool call"),
    ("interrupted", r"\A\[?Request interrupted by user"),
    ("interrupted", r"\[Request interrupted by user[^\]\n]*\]\s*\Z"),
    ("interrupted", r"\A(?:aborted|interrupted|cancelled|canceled) by (?:the )?user"),
    (
        "interrupted",
        r"\A(?:Tool (?:execution|call|use) |The (?:operation|tool call|request) )was (?:interrupted|aborted)",
    ),
    ("interrupted", r"\A(?:Command was aborted before completion|Tool permission request failed|AbortError)"),
    ("interrupted", r"\A(?:API Error: )?Request was aborted\b"),
    ("harness_broken", r"\A\[?Tool result missing due to internal error"),
    ("harness_broken", r"\A[^\n]{0,300}(?:\bENOSPC\b|\bNo space left on device\b)"),
    ("harness_broken", r"\A[^\n]{0,200}\bposix_spawn\b", r"\Abwrap: "),
    ("harness_broken", r"\A[^\n]{0,80}\bspawn [^\n]{0,200}\bE(?:NOENT|ACCES|AGAIN|2BIG|MFILE|NOMEM|BADF)\b"),
    ("harness_broken", r"\A(?:Streaming fallback|Stream closed|Tool permission stream closed|EMFILE\b)"),
    ("harness_broken", r"\A[^\n]{0,300}(?:was deleted|working directory [^\n]*no longer exists)[^\n]*restart"),
    ("harness_broken", r"\A(?:MCP error -32000: )?(?:Connection closed|Not connected)\b"),
    ("harness_broken", r"\A[^\n]{0,80}(?:Runtime|Environment|Sandbox)\w*(?:Disconnected|Died|Unavailable)\w*"),
    ("hook_blocked", r"\A(?:Pre|Post)ToolUse:\S* (?:\[[^\n]*\] )?hook\b"),
    ("hook_blocked", r"\A[^\n]{0,80}\b(?:blocked by|hook error:|hook blocked)[^\n]{0,40}\b(?:hook|\[)"),
    # The group tells what a harness says of its own model from what a command prints of a server.
    ("service_unavailable", r"\A(?P<api>API Error): (?P<status>408|429|5\d\d)\b"),
    ("service_unavailable", r"\A(?P<api>(?:API Error: )?Connection error)\.?\s*\Z"),
    ("service_unavailable", r"\A(?:API Error: )?(?:Overloaded|overloaded_error|rate_limit_error)"),
    ("service_unavailable", r"\A[^\n]{0,200}\bstatus (?:code:? )?(?P<status>429|5\d\d)\b"),
    ("service_unavailable", r"\A[^\n]{0,80}\bHTTP(?:/[\d.]+)?(?: Error| status)?:? (?P<status>429|5\d\d)\b"),
)

# Tools that do not exist. Shells say "command not found", which is another thing.
UNKNOWN_TOOL_TEXTS = Rules(
    re.IGNORECASE,
    ("tool_not_found", r"""\bNo such tool(?: available)?:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?"""),
    (
        "tool_not_found",
        r"""\b(?:Unknown|Invalid|Unrecognized|Undefined) (?:tool"""
        r"""|function)\b(?: name)?:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?""",
    ),
    (
        "tool_not_found",
        r"""\b(?:Tool|Function) [`'\"]?(?P<name>[\w.:/-]{0,80}\w)[`'\"]? (?:is )?(?:not found|does not exist"""
        r"""|not available|not registered|unknown)""",
    ),
    ("tool_not_found", r"""\btool not found\b:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?"""),
    ("tool_not_found", r"\bunsupported (?:custom tool )?call: (?P<name>[\w.:/-]{0,80}\w)"),
    ("tool_not_found", r"""[`'\"]?(?P<name>[\w.:/-]{0,80}\w)[`'\"]? is not a valid tool"""),
    ("tool_not_found", r"\bMethod not found\b"),
)

# The call itself: its form, its JSON, its parameters.
ARGUMENT_TEXTS = Rules(
    re.IGNORECASE,
    ("malformed_call", r"\bYour (?:output|response) (?:could not be parsed|was not formatted correctly)"),
    ("malformed_call", r"\bPlease (?:always )?provide EXACTLY ONE action\b"),
    (
        "malformed_call",
        r"\binvalid (?:patch|hunk)\b",
        r"\bpatch rejected: empty",
        r"no hunks found",
        r"hunk [^\n]*is malformed",
    ),
    ("type_error", r"\bInputValidationError\b"),
    ("type_error", r"\bfailed to parse function arguments: (?:missing field|unknown field|invalid type|invalid value)"),
    ("json_decode", r"\bJSONDecodeError\b", r"\bfailed to parse function arguments\b"),
    ("json_decode", r"\bExpecting (?:value|property name[^:\n]*|'[,:]' delimiter): line \d+"),
    ("json_decode", r"\b(?:Unterminated string|Invalid control character|Invalid \\escape)[^\n]*line \d+"),
    ("json_decode", r"\bUnexpected (?:token|end of JSON|non-whitespace)[^\n]*JSON\b", r"\bUnexpected end of JSON"),
    ("json_decode", r"\b(?:is not|isn't|not|invalid|malformed) (?:a )?(?:valid )?JSON\b"),
    (
        "json_decode",
        r"\b(?:could not|failed to|error|cannot) (?:be )?pars(?:e|ed"
        r"|ing) (?:the )?(?:tool )?(?:call )?(?:arguments|input)\b",
    ),
    ("type_error", r"\d+ validation errors? for \w"),
    ("type_error", r"""\b(?:required|unexpected) parameters? [`'\"]"""),
    ("type_error", r"""\bparameter [`'\"][\w.-]+[`'\"] (?:type )?is (?:expected|required|missing)"""),
    ("type_error", r"\bMissing required (?:parameter|argument|field|propert)"),
    ("type_error", r"\bis a required property\b", r"\bAdditional properties are not allowed\b", r"\bis not of type '"),
    ("type_error", r"\bmust have required property\b", r"\bmust NOT have additional properties\b"),
    (
        "type_error",
        r"\"code\":\s*\"(?:invalid_type|unrecognized_keys|invalid_enum_value|invalid_union|invalid_value)\"",
    ),
    ("type_error", r"\bmissing \d+ required (?:positional|keyword-only) argument", r"\bunexpected keyword argument\b"),
    ("type_error", r"\bwrong arguments?\b", r"\binvalid (?:tool )?(?:arguments?|params?|parameters?)\b(?! path)"),
    ("type_error", r"""\bInvalid [`'\"](?!path)[\w.-]+[`'\"] parameter\b"""),
    ("type_error", r"\A(?:TypeError|ValidationError|ZodError)\b"),
)

# Files and edits. What an edit quotes may hold any other text, so these are tried on the first line before the rest.
FILE_TEXTS = Rules(
    re.IGNORECASE,
    (
        "edit_before_read",
        r"\bFile has not been read yet\b",
        r"\bmust (?:first )?read (?:the file )?[^\n]{0,200}\bbefore\b",
    ),
    ("edit_before_read", r"\bRead it first before (?:writing|editing)"),
    ("edit_multiple_matches", r"\bFound (?P<matches>\d+) (?:matches|occurrences) of the string to replace"),
    ("edit_multiple_matches", r"\bMultiple occurrences of old_str\b", r"\bold_?string found multiple times"),
    (
        "edit_multiple_matches",
        r"\bexpected 1 occurrences? but found (?P<matches>[2-9]|\d\d+)",
        r"\bfound (?P<found>[2-9]|\d\d+) (?:times|matches)\b",
    ),
    (
        "edit_no_match",
        r"\bString to replace not found\b",
        r"\bdid not appear verbatim\b",
        r"\bold_?str(?:ing)? not found\b",
    ),
    ("edit_no_match", r"\bFailed to find (?:expected lines|context)\b(?:[^\n]* in (?P<path>[^\n]+?):?\s*(?:\n|\Z))?"),
    ("edit_no_match", r"\b0 occurrences found\b", r"\bSEARCH block\b[^\n]*\bnot (?:found|match)"),
    (
        "edit_no_match",
        r"\bapply_patch verification failed\b"
        r"(?![^\n]*(?:No such file|does not exist|invalid|malformed|no hunks))",
    ),
    ("edit_stale", r"\b(?:modified|changed) since (?:it was )?(?:last )?read\b", r"\bunexpectedly modified\b"),
    ("edit_no_change", r"\bNo changes? to (?:make|apply)\b", r"\bexactly the same\b", r"\bare identical\b"),
    ("edit_no_change", r"\bapply_patch[^\n]*produc\w+ no changes?\b"),
    ("edit_syntax_error", r"\bYour (?:proposed )?edit has introduced (?:new )?syntax error"),
    ("file_too_large", r"\((?P<size>[\d,.]+ ?\w+)\) exceeds maximum allowed (?:tokens|size) \((?P<limit>[^)\n]+)\)"),
    ("file_too_large", r"\bexceeds (?:the )?maximum allowed (?:tokens|size)\b", r"\bfile (?:content )?is too large\b"),
    (
        "unsupported_file",
        r"\bcannot read (?:this )?binary files?\b",
        r"\bappears to be (?:a )?binary\b",
        r"\bunsupported file type\b",
    ),
    ("file_exists", r"\bEEXIST\b(?:[^\n]*?, \w+ '(?P<path>[^'\n]+)')?", r"\bFile already exists\b"),
    ("file_exists", r"""\bfile [`'\"]?(?P<path>[^\s`'\"]+)[`'\"]? already exists\b"""),
    ("is_directory", r"\bEISDIR\b", r"\bIsADirectoryError\b", r"\bis a directory\b"),
    ("path_not_found", r"\b(?:Path|Directory|Folder) (?:does not exist|not found)(?:: (?P<path>[^\n]+))?"),
    (
        "path_not_found",
        r"\bThe (?:path|directory) (?P<path>\S+) does not exist\b",
        r"\bENOTDIR\b",
        r"\bNotADirectoryError\b",
    ),
    (
        "file_not_found",
        r"\bFile (?:does not exist|not found)(?:: (?P<path>[^\n]+))?",
        r"\bFile (?P<missing>\S+) (?:not found|does not exist)",
    ),
    (
        "file_not_found",
        r"\bENOENT\b[^\n]*?, \w+ '(?P<path>[^'\n]+)'",
        r"\bENOENT\b",
        r"\bFileNotFoundError\b",
        r"\bno such file\b",
    ),
    (
        "permission_denied",
        r"\bEACCES\b[^\n]*?, \w+ '(?P<path>[^'\n]+)'",
        r"\bEACCES\b",
        r"\bEPERM\b",
        r"\bPermissionError\b",
    ),
    ("permission_denied", r"\bpermission denied\b", r"\boperation not permitted\b", r"\bread-only file system\b"),
    (
        "permission_denied",
        r"\b(?:failed in|denied by(?: the)?|blocked by(?: the)?) sandbox\b",
        r"\bsandbox(?:ing)? (?:error|denied)\b",
    ),
    ("permission_denied", r"\boutside (?:of )?the (?:project|workspace|allowed|working)\b", r"\baccess denied\b"),
)

# What else tools answer.
OTHER_TEXTS = Rules(
    re.IGNORECASE,
    (
        "unknown_name",
        r"""\bUnknown (?:skill|agent|task|slash command|command|subagent|resource"""
        r"""|workflow|process|session)\b(?: type| id)?:? ?[`'\"]?(?P<name>[\w.:/-]{0,80}\w)?""",
    ),
    (
        "unknown_name",
        r"""\b(?:Agent(?: type)?|Skill|Task|Shell|Cell|Server"""
        r"""|Session)(?: with ID)? [`'\"]?(?P<name>[\w.:/-]{0,80}\w)[`'\"]? (?:was )?(?:not found|does not exist"""
        r"""|is not running)""",
    ),
    (
        "unknown_name",
        r"\bNo (?:task|shell|agent|skill|background process|session|cell)s? (?:was )?found\b(?: (?:with"
        r"|for) ID:? ?(?P<name>[\w.:/-]{0,80}\w))?",
    ),
    ("unknown_name", r"\b(?:Task|Skill|Agent) not found\b(?:: ?(?P<name>[\w.:/-]{0,80}\w))?"),
    (
        "blocked_command",
        r"\A(?P<name>[\w.-]+) in '[^\n]*' was blocked",
        r"\ABlocked: (?P<blocked>[^\n]{1,100}?)(?:\. |\.?\n|\.?\Z)",
        r"\bblocked by policy\b",
    ),
    ("blocked_command", r"""\bOperation ['\"`](?P<name>[^'\"`\n]{1,60})['\"`] is not supported by this environment"""),
    ("bad_pattern", r"\bregex parse error\b", r"\binvalid regular expression\b", r"\bInvalid regex\b"),
    (
        "timeout",
        r"\btimed out\b",
        r"\btimeout (?:of|after|exceeded)\b",
        r"\bTimeoutError\b",
        r"\bbecause it took more than \d+ seconds",
    ),
    (
        "http_error",
        r"\bstatus (?:code:? )?(?P<status>4\d\d)\b",
        r"\bHTTP(?:/[\d.]+)?(?: Error| status)?:? (?P<code>4\d\d)\b",
    ),
    ("http_error", r"\A(?P<status>4\d\d) (?:Bad Request|Unauthorized|Forbidden|Not Found|Gone)\b"),
    (
        "http_error",
        r"\bunable to (?:fetch|verify if domain)\b",
        r"\bENOTFOUND\b",
        r"\bECONNREFUSED\b",
        r"\bECONNRESET\b",
        r"\bInvalid URL\b",
    ),
    ("mcp_error", r"\Atool call error: ", r"\A### Error\b", r"\bMCP error -?\d+", r"\bJSON-RPC error\b"),
)
