"""Redaction: a login that a home directory reveals is gone from the whole trace, and ordinary words stay."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from composer_replication.ingestion.redaction import Redactor, redact_trace
from composer_replication.ingestion.redaction.personal import HOME_USER
from composer_replication.traces import Source, ToolCall, Trace, Turn


def _trace(*turns: Turn, **fields: Any) -> Trace:
    return Trace(trace_id="t", turns=list(turns), source=Source(file="a.jsonl", format="f"), **fields)


def _redacted(text: str, cwd: str | None) -> str:
    """The text as a result, and as a command, in a trace with this working directory."""
    call = ToolCall("c", "Bash", {"command": text})
    trace = _trace(Turn(role="tool", content=text), Turn(role="assistant", tool_calls=[call]), cwd=cwd)
    redact_trace(trace)
    assert trace.turns[1].tool_calls[0].arguments["command"] == trace.turns[0].content
    return trace.turns[0].content


# Where a login stands as one, whatever word it is.
_AS_LOGIN = [
    "-rw-r--r--@ 1 {}  staff  1024 Jan  5 10:00 a.py",
    "total 8\ndrwxr-xr-x. 12 {0} {0} 4096 Jan  5 10:00 src\n-rw------- 1 root {0} 5 Jan  5 10:00 b",
    "/tmp/pytest-of-{}/pytest-3/test_a0",
    "{}@buildbox:~/app$ make",
    "ssh {}@10.0.0.7 uptime",
    "scp a.tgz {}@build.internal:/srv",
    "uid=501({0}) gid=20(staff) groups=20(staff),1000({0})",
    "Author: {} <>",
    "chown -R {}:staff . && sudo -u {} make",
    "refs/heads/{0}/fix-login\n  remotes/origin/{0}/fix-login",
    "git push -u origin {0}/fix-login && git checkout -b {0}/fix-2",
    "git clone https://github.com/{0}/app.git && git remote add up git@github.com:{0}/app.git",
    "ls ~{}/bin",
    "USER={0} LOGNAME={0}",
    '"owner": {{"login": "{0}"}}, "username": "{0}"',
    "[{}/fix-login 1a2b3c4] Fix\nOn branch {}/fix-login",
    'gh pr create --head {0}/fix && git push origin HEAD:{0}/fix\n{{"headRefName":"{0}/fix"}}',
    "{}      1234   0.0  0.1 4321 zsh",
    "{0}   ttys001  Jan 5 10:00\nnode    812 {0}   23u  IPv4",
    "-rw-r--r-- {}/staff 120 2025-01-05 a.py",
]
# Where only the word tells.
_ANYWHERE = [
    "{}",
    "whoami\n{}\n",
    "/private/tmp/{}-cache/x /srv/{}/app /Volumes/{}",
    "DESKTOP-7\\{}",
    "reviewed by {}, thanks {}!",
    "com.{}.app {}_dev {}-macbook.local",
    '{{"out": "a\\n{}\\nb"}}',
]


@pytest.mark.parametrize("text", [*_AS_LOGIN, *_ANYWHERE])
@pytest.mark.parametrize("login", ["jkwiatek", "mary.jane-doe", "k8smith", "kwia"])
def test_a_revealed_login_goes_everywhere(text: str, login: str) -> None:
    assert _redacted(text.format(login, login, login), f"/Users/{login}/work/app") == text.format(*["user1"] * 3)


@pytest.mark.parametrize("text", _AS_LOGIN)
@pytest.mark.parametrize("login", ["mark", "max", "alice", "jo"])
def test_an_ordinary_word_goes_where_it_is_a_login(text: str, login: str) -> None:
    assert _redacted(text.format(login, login), f"/home/{login}/app") == text.format("user1", "user1")


@pytest.mark.parametrize(
    ("login", "text"),
    [
        ("mark", "@pytest.mark.skip\ndef mark(self): ...\nmark it as done; mark@2x.png mark@1.2.0 a/mark/b"),
        ("max", "max(a, b) + max_tokens --max 3 the max is high, origin/max"),
        ("will", "it will fail, I will look; note to the user: will retry\n* will/could do; origin/main will move"),
        ("page", 'page=2 /page/3 "page": 1'),
        ("alice", 'users = ["alice", "bob"]'),
        ("river", "River.ex uses river queues"),
        ("build-agent", "the build-agent restarts"),
        ("mark2", "mark2 = 1"),
        ("kim", "as kim and Kim said"),
        ("user", "user@host -rw-r--r-- 1 user user 5 a"),
        ("ubuntu", "ubuntu@10.0.0.7 /home/ubuntu/a"),
        ("jkwiatek", "jkwiatekson xjkwiatek jkwiatek2 JKwiatek"),
    ],
)
def test_ordinary_words_and_parts_of_words_stay(login: str, text: str) -> None:
    assert _redacted(text, f"/home/{login}/app") == text


@pytest.mark.parametrize(
    "code",
    [
        "import frodox\nfrodox.init_app()",
        "from frodox import db",
        "frodox(1)",
        "const x = require('frodox')",
        "func frodox() {}",
        "frodox_client = Client()",
        "run --frodox",
        "echo $frodox",
    ],
)
def test_a_login_that_code_uses_as_a_name_goes_only_where_it_is_a_login(code: str) -> None:
    before, as_login = "the frodox package", "drwxr-xr-x 2 frodox frodox 64 Jan 5 10:00 a"
    trace = _trace(
        *(Turn(role="assistant", content=text) for text in (before, as_login, code, before, "/home/frodox")),
        cwd="/home/frodox/app",
    )
    redact_trace(trace)
    assert [turn.content for turn in trace.turns[:4]] == [before, as_login.replace("frodox", "user1"), code, before]


@pytest.mark.parametrize(
    "home",
    [
        "/Users/jkwiatek/app",
        "/home/jkwiatek\n",
        "cd /Users/jkwiatek/app && make",
        "/home/jkwiatek/app/a.py",
        "see /home/jkwiatek/.cache/pip",
        "C:\\Users\\Jkwiatek\\app",
        "open c:/users/jkwiatek/app",
        "/System/Volumes/Data/Users/jkwiatek/app",
        "at /var/home/jkwiatek/Documents/a",
        "tail /tmp/claude-1000/-home-jkwiatek-app/tasks/b",
    ],
)
def test_a_home_directory_reveals_a_login_to_what_comes_before_it(home: str) -> None:
    trace = _trace(Turn(role="tool", content="by jkwiatek"), Turn(role="tool", content=home))
    redact_trace(trace)
    assert trace.turns[0].content == "by user1"
    assert "kwiatek" not in trace.turns[1].content


def test_what_may_be_a_home_is_one_once_it_is_certain() -> None:
    texts = ["by jkwiatek", "in /home/jkwiatek/lib/x", "/home/jkwiatek/app"]
    trace = _trace(*(Turn(role="tool", content=text) for text in texts))
    redact_trace(trace)
    assert trace.turns[0].content == "by user1"


@pytest.mark.parametrize("cut", ["in /Users/gizm", "in /home/gizm", '"/home/gizm"', "/Users/gizm\n..."])
def test_a_name_that_may_be_cut_is_not_looked_for(cut: str) -> None:
    trace = _trace(Turn(role="tool", content=cut), Turn(role="tool", content="-rw-r--r-- 1 gizm gizm 5 a; gizm@host"))
    redact_trace(trace)
    assert trace.turns[1].content == "-rw-r--r-- 1 gizm gizm 5 a; gizm@host"


@pytest.mark.parametrize("route", ["push('/home/gizmos/all')", 'href="/home/gizmos"', "/Users/Gizmos/Edit/5"])
def test_what_may_be_a_route_reveals_nobody(route: str) -> None:
    trace = _trace(Turn(role="assistant", content=f"x {route}"), Turn(role="assistant", content="the gizmos, Gizmos"))
    redact_trace(trace)
    assert trace.turns[1].content == "the gizmos, Gizmos"


@pytest.mark.parametrize(
    ("folder", "redacted"),
    [
        ("~/.claude/projects/C--Users-jkwiatek-app/x", "~/.claude/projects/C--Users-user1-app/x"),
        ("~/.claude/projects/-mnt-c-Users-jkwiatek-app/x", "~/.claude/projects/-mnt-c-Users-user1-app/x"),
    ],
)
def test_folder_names_of_claude_code_on_windows(folder: str, redacted: str) -> None:
    assert Redactor().text(folder) == redacted


def test_the_name_of_an_argument_alone() -> None:
    trace = _trace(Turn(role="assistant", tool_calls=[ToolCall("c", "X", {"jkwiatek": 1})]), cwd="/Users/jkwiatek/app")
    redact_trace(trace)
    assert trace.turns[0].tool_calls[0].arguments == {"user1": 1}


def test_every_field_of_a_trace() -> None:
    login = "jkwiatek"
    trace = _trace(
        Turn(role="user", content=f"I am {login}", origin="prompt"),
        Turn(
            role="assistant",
            content=login,
            thinking=f"{login} asks",
            tool_calls=[
                ToolCall("c1", "Bash", {"command": f"id {login}", login: [{"deep": login}]}),
                ToolCall("c2", "Bash", raw_arguments=f'{{"command": "id {login}'),
            ],
            tool_error=f"no such user: {login}",
            error_meta={"text": f"{login}: no such user"},
        ),
        Turn(role="tool", content=f"{login} : admin", tool_call_id="c1"),
        cwd=f"/Users/{login}/app",
        git_branch=f"{login}/fix-login",
        meta={"title": f"for {login}", "git": {"branch": f"{login}/fix-login"}},
        tools=[{"name": "Bash", "description": f"runs as {login}"}],
    )
    trace.source.file = f"{login}.jsonl"
    counts = redact_trace(trace)
    assert login not in msgspec.json.encode(trace).decode()
    assert trace.git_branch == "user1/fix-login"
    assert trace.turns[1].tool_calls[0].arguments == {"command": "id user1", "user1": [{"deep": "user1"}]}
    assert counts == {HOME_USER: 16}


@pytest.mark.parametrize("login", ["mark", "jkwiatek"])
def test_a_branch_of_a_login(login: str) -> None:
    trace = _trace(cwd=f"/home/{login}/app", git_branch=f"{login}/fix-{login}")
    redact_trace(trace)
    assert trace.git_branch == ("user1/fix-mark" if login == "mark" else "user1/fix-user1")


def test_two_logins_of_which_one_begins_like_the_other() -> None:
    trace = _trace(
        Turn(role="tool", content="/Users/annika-lena/x"),
        Turn(role="tool", content="annika, annika-lena"),
        cwd="/Users/annika/x",
    )
    redact_trace(trace)
    assert [turn.content for turn in trace.turns] == ["/Users/user2/x", "user1, user2"]
