"""Redaction: what has to go goes, what has to stay stays, and a trace stays one story."""

from __future__ import annotations

import json
import random
import re
import string
import sys
from pathlib import Path

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from composer_replication.ingestion.redaction import Redactor, _rules, redact_trace
from composer_replication.ingestion.redaction.personal import _NO_USER
from composer_replication.ingestion.redaction.tokens import _library_patterns
from composer_replication.pattern_set import wider_gate
from composer_replication.traces import Source, ToolCall, Trace, Turn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import redaction_corpus as corpus


def _made_up(kind: str, seed: int = 0) -> str:
    return corpus.KINDS[kind].make(random.Random(f"{kind} {seed}"))


def _trace(*turns: Turn, **fields: object) -> Trace:
    return Trace(trace_id="t", turns=list(turns), source=Source(file="a.jsonl", format="f"), **fields)  # type: ignore[arg-type]


def _redacted(redactor: Redactor, text: str) -> str:
    return redactor.again(redactor.text(text))


def _text_of(trace: Trace) -> str:
    return msgspec.json.encode(trace).decode()


def test_recall_of_every_kind() -> None:
    cases = list(corpus.planted(seed=1, per_kind=100))
    found = corpus.recall(cases)
    left = {f"{case.kind} in {case.place}" for case in cases if corpus.leaks(case)}
    assert len(found) >= 20
    assert {kind: good / total for kind, (good, total) in found.items() if good < 0.99 * total} == {}, left


def test_every_place_is_tried_and_leaks_without_redaction() -> None:
    cases = list(corpus.planted(seed=2, per_kind=1))
    assert {case.place for case in cases} == set(corpus.PLACES)
    assert all(map(corpus.leaks, cases))


@pytest.mark.parametrize("seed", range(5))
def test_text_without_secrets_stays(seed: int) -> None:
    assert corpus.false_positives(seed) == []


@pytest.mark.parametrize(
    "text",
    [
        "password = os.environ['DB_PASSWORD_2']",
        "password: str = Field(min_length=8)",
        "const token2 = await getToken(user1, 'abc')",
        "client = Client(api_key=api_key_2, secret=cfg.secret2)",
        "PASSWORD=$DB_PASS1 TOKEN=${TOKEN_2} KEY=$(cat /run/key2)",
        'api_key = "<your-key-1>"',
        "password: ********",
        '"token": "xxxxxxxxxxxx1"',
        "model: claude-opus-4-20250514, secret_key_base: my-app-secret-2",
        "DB_PASSWORD=changeme1",
        "postgres://user:password@localhost/db",
        "Authorization: Bearer ${TOKEN1234567890}",
        "https://registry.npmjs.org/@scope/pkg/-/pkg-1.2.3.tgz",
        "uses: actions/checkout@v4.2.1",
        "pip install git+https://git@github.com/org/repo.git@v1.2.0",
        "scp build.tgz git@host.service.io:/srv",
        "matrix = a@b.transpose",
        "def test_token_abc123(): ...",
        "kubectl get secret db-credentials-v2 -o yaml",
        "docker run -p 8080:80 --name api2 app",
        "ls -p a1b2c3d4e5; mkdir -p build/x1y2z3w4",
        "max_tokens=128000, token_budget: 64000, password_min_length = 12345678",
        "ssh-keygen -t ed25519 -f id_ed25519",
        "primary_key=a1b2c3d4e5f6a7b8c9d0, cache-key: v1-9f8e7d6c5b4a3f2e1d0c",
        "AKIAIOSFODNN7EXAMPLE",
        'TOKEN_FILE=a1b2c3d4e5f6 api_key_id: "a1b2c3d4e5f6a7b8"',
        "token: request.x509v3fields, secret: db->field1x2y3z4w5",
        '"secret": "db-credentials-v2", "token": "refresh_token_2"',
        "BEGIN RSA PRIVATE KEY",
        "-----BEGIN PRIVATE KEY-----\\n(the key, as the tool has printed it, goes in here)\\n-----END PRIVATE KEY-----",
        "foo@1.2.dev a@self.me icon@2x.ai",
        '"token_kind": 1, "secret": "cache_write_5m_kind", token = "\\U000f0001", key_mask: 0x00002B992DDFA232',
        "/home/linuxbrew/.linuxbrew/bin /Users/runner/work app/home/alice/index.ts",
        "<EMAIL_1> <PASSWORD_12> <AWS_ACCESS_KEY_3> /home/user3/a",
    ],
)
def test_what_only_looks_like_a_secret_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text
    assert redactor.counts == {}


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("DB_PASSWORD={s}", "DB_PASSWORD=<PASSWORD_1>"),
        ("export FOO_TOKEN='{s}' && run", "export FOO_TOKEN='<SECRET_1>' && run"),
        ('{{\\"apiKey\\": \\"{s}\\"}}', '{{\\"apiKey\\": \\"<SECRET_1>\\"}}'),
        ('password: str = "{s}"', 'password: str = "<PASSWORD_1>"'),
        ('os.getenv("API_KEY", "{s}")', 'os.getenv("API_KEY", "<SECRET_1>")'),
        ("Server=db;User Id=sa;Password={s};Encrypt=1", "Server=db;User Id=sa;Password=<PASSWORD_1>;Encrypt=1"),
        ("<password>{s}</password>", "<password><PASSWORD_1></password>"),
        ("https://api.io/v1?api_key={s}&page=2", "https://api.io/v1?api_key=<SECRET_1>&page=2"),
        ("tool --api-key {s} --verbose", "tool --api-key <SECRET_1> --verbose"),
        ("sshpass -p {s} ssh deploy@host", "sshpass -p <PASSWORD_1> ssh deploy@host"),
        ("redis://:{s}@cache:6379/0", "redis://:<PASSWORD_1>@cache:6379/0"),
        ("postgres://app:{s}@db:5432/shop", "postgres://app:<PASSWORD_1>@db:5432/shop"),
        ("-H 'X-Api-Key: {s}'", "-H 'X-Api-Key: <SECRET_1>'"),
        ("Authorization: token {s}", "Authorization: token <SECRET_1>"),
        ("aws configure set aws_secret_access_key {s}", "aws configure set aws_secret_access_key <SECRET_1>"),
        ("the password is {s}, I think", "the password is <PASSWORD_1>, I think"),
        ("git clone https://{s}@git.io/a.git", "git clone https://<URL_TOKEN_1>@git.io/a.git"),
        ("a.ghp_{s}1234@c-d.io", "a.<GITHUB_TOKEN_1>@c-d.io"),
        (
            "//registry.npmjs.org/:_authToken=npm_{s}1234 && npm publish",
            "//registry.npmjs.org/:_authToken=<NPM_TOKENS_1> && npm publish",
        ),
    ],
)
def test_the_shape_around_a_secret_stays(text: str, redacted: str) -> None:
    secret = _made_up("generic_secret").replace("-", "a").replace("_", "b")
    assert Redactor().text(text.format(s=secret)) == redacted.format(s=secret)


def test_short_passwords_in_shells_and_yaml() -> None:
    assert Redactor().text("export MYSQL_PASSWORD=hunter2\n") == "export MYSQL_PASSWORD=<PASSWORD_1>\n"
    assert Redactor().text("db:\n  password: hunter2\n") == "db:\n  password: <PASSWORD_1>\n"
    assert Redactor().text("    12→  password: hunter2\n") == "    12→  password: <PASSWORD_1>\n"
    assert Redactor().text("a: 1\npassword: hunter2\n") == "a: 1\npassword: <PASSWORD_1>\n"
    assert Redactor().text("create --password hunter2 a") == "create --password <PASSWORD_1> a"
    assert Redactor().text("connect(password=hunter2)") == "connect(password=hunter2)"


def test_same_secret_same_placeholder() -> None:
    redactor = Redactor()
    first, second = _made_up("github_classic", 1), _made_up("github_classic", 2)
    assert redactor.text(f"{first} {second} {first}") == "<GITHUB_TOKEN_1> <GITHUB_TOKEN_2> <GITHUB_TOKEN_1>"
    assert redactor.text(f"again {second}") == "again <GITHUB_TOKEN_2>"
    assert redactor.counts == {"GITHUB_TOKEN": 4}


def test_mail_addresses() -> None:
    redactor = Redactor()
    text = "Co-Authored-By: A <a.b@c-d.io>\\nx.y+z@uni.edu, a.b@c-d.io; 123+name@users.noreply.github.com"
    expected = "Co-Authored-By: A <<EMAIL_1>>\\n<EMAIL_2>, <EMAIL_1>; <EMAIL_3>"
    assert redactor.text(text) == expected


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        ("/home/alice/a.py", "/home/user1/a.py"),
        ("cd /Users/alice", "cd /Users/user1"),
        ("C:\\Users\\alice\\a", "C:\\Users\\user1\\a"),
        ('"C:\\\\Users\\\\alice\\\\a"', '"C:\\\\Users\\\\user1\\\\a"'),
        ("C:/Users/Alice Smith/a", "C:/Users/user1/a"),
        ("/mnt/c/Users/alice/a", "/mnt/c/Users/user1/a"),
        ("file:///home/alice/a", "file:///home/user1/a"),
        ("gcc -I/home/alice/include", "gcc -I/home/user1/include"),
        ("a\\n/home/alice/x", "a\\n/home/user1/x"),
        ("~/.claude/projects/-Users-alice-work-app/x", "~/.claude/projects/-Users-user1-work-app/x"),
        ("/home/alice/a /home/bob/b /home/alice/c", "/home/user1/a /home/user2/b /home/user1/c"),
        ("/home/zoë/a", "/home/user1/a"),
        ("cd /home/us", "cd /home/user1"),
        ("/home/user7bob/x", "/home/user1/x"),
        ("/home/user7/x", "/home/user7/x"),
        ("/root/a", "/root/a"),
    ],
)
def test_home_directories(text: str, redacted: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == redacted
    assert redactor.text(text) == redacted


def test_nobodys_home_opens_no_gate_and_a_name_that_only_begins_like_it_does() -> None:
    gates, rules = _rules()

    def opens(text: str) -> bool:
        return len(rules) - 1 in (gates.matching(text.encode("latin-1")) or ())

    for name in _NO_USER:
        assert not any(map(opens, (f"/home/{name}/1", f"C:\\Users\\{name}", f'"/home/{name}"'))), name
        for begins in (name[:end] for end in range(1, len(name) + 1)):
            for text in (f"/home/{begins}{tail}" for tail in ("", "x", "-x", "Z/", " Doe/", "\xe9", '"')):
                assert opens(text) or not list(rules[-1].find(text)), text


def test_folder_names_of_claude_code_know_names_with_dashes() -> None:
    redactor = Redactor()
    redactor.text("/Users/mary.jane-doe/work")
    assert redactor.text("projects/-Users-mary-jane-doe-work") == "projects/-Users-user1-work"


@pytest.mark.parametrize("name", ["RSA PRIVATE KEY", "PRIVATE KEY", "OPENSSH PRIVATE KEY", "PGP PRIVATE KEY BLOCK"])
def test_private_keys(name: str) -> None:
    key = corpus._pem(name)(random.Random(name))
    escaped = json.dumps(key)
    assert Redactor().text(f"a\n{key}\nb") == "a\n<PRIVATE_KEY_1>\nb"
    assert Redactor().text(f'{{"k": {escaped}}}') == '{"k": "<PRIVATE_KEY_1>"}'
    assert Redactor().text(f"{key[:300]}\n\nNow let me see.") == "<PRIVATE_KEY_1>\n\nNow let me see."


def test_putty_keys() -> None:
    body = corpus._chars(corpus.BASE64, 64)(random.Random(0))
    key = f"PuTTY-User-Key-File-3: ssh-rsa\nEncryption: none\nPrivate-Lines: 1\n{body}\nPrivate-MAC: {'0a' * 32}"
    assert Redactor().text(f"{key}\nend") == "<PRIVATE_KEY_1>\nend"


def test_two_keys_in_one_text() -> None:
    first, second = _made_up("rsa_key", 1), _made_up("rsa_key", 2)
    assert Redactor().text(f"{first}\nand {second}") == "<PRIVATE_KEY_1>\nand <PRIVATE_KEY_2>"
    assert Redactor().text(f"{first[:200]}\n{second}") == "<PRIVATE_KEY_1>\n<PRIVATE_KEY_2>"


def test_keys_of_mappings_and_options_name_their_values() -> None:
    secret, password = _made_up("datadog"), _made_up("password")
    redactor = Redactor()
    value = {
        "env": {"DD_API_KEY": secret, "PORT": "80"},
        "argv": ["run", "--password", password],
        secret: 1,
        "n": [None, 2.5],
    }
    assert redactor.value(value) == {
        "env": {"DD_API_KEY": "<SECRET_1>", "PORT": "80"},
        "argv": ["run", "--password", "<PASSWORD_1>"],
        "<SECRET_1>": 1,
        "n": [None, 2.5],
    }


def test_a_secret_spreads_through_the_trace() -> None:
    secret = _made_up("twilio_auth_token")
    trace = _trace(
        Turn(role="assistant", content=f"before: {secret}"),
        Turn(
            role="assistant", tool_calls=[ToolCall("c1", "Bash", {"command": f"./x {secret}", "n": {"deep": [secret]}})]
        ),
        Turn(role="tool", tool_call_id="c1", content=f"TWILIO_AUTH_TOKEN={secret}"),
        Turn(
            role="assistant",
            thinking=f"I saw {secret}",
            tool_calls=[ToolCall("c2", "X", raw_arguments=f'{{"a": "{secret}')],
        ),
        Turn(role="assistant", tool_error=f"bad {secret}", error_meta={"text": f"bad {secret}"}),
        meta={"summary": secret},
        tools=[{"description": f"uses {secret}"}],
        git_branch=f"fix/{secret}",
    )
    counts = redact_trace(trace)
    assert secret not in _text_of(trace)
    assert trace.turns[0].content == "before: <SECRET_1>"
    assert trace.turns[1].tool_calls[0].arguments == {"command": "./x <SECRET_1>", "n": {"deep": ["<SECRET_1>"]}}
    assert trace.turns[1].tool_calls[0].id == "c1"
    assert counts == {"SECRET": 11}


def test_a_secret_spreads_into_json_that_escapes_it() -> None:
    secret = 'pa"ss1\\x9Z'
    trace = _trace(
        Turn(role="tool", content=f"DB_PASSWORD='{secret}'"),
        Turn(role="assistant", tool_calls=[ToolCall("c", "X", raw_arguments=json.dumps([f"run {secret}"]) + "}")]),
        Turn(role="tool", content=f'{{"out": "a\\n{secret[:2]}nothing"}}'),
    )
    redact_trace(trace)
    assert trace.turns[0].content == "DB_PASSWORD='<PASSWORD_1>'"
    assert trace.turns[1].tool_calls[0].raw_arguments == '["run <PASSWORD_1>"]}'
    assert trace.turns[2].content == '{"out": "a\\npanothing"}'


def test_what_the_library_finds_by_a_name_spreads() -> None:
    # No name and no sign is before it, as our own rule wants; the library's asks for `aws`, `key` and the length.
    secret = "12Ab/34cD+" * 4
    trace = _trace(
        Turn(role="assistant", content=f"run {secret}"), Turn(role="tool", content=f"aws key of ci '{secret}'")
    )
    redact_trace(trace)
    assert trace.turns[0].content == "run <AWS_ACCESS_KEY_1>"


def test_plain_words_do_not_spread() -> None:
    trace = _trace(
        Turn(role="tool", content="DATABASE_URL=postgres://app:shopkeeper@db/shop"),
        Turn(role="assistant", content="The shopkeeper table is empty."),
    )
    redact_trace(trace)
    expected = ["DATABASE_URL=postgres://app:<PASSWORD_1>@db/shop", "The shopkeeper table is empty."]
    assert [turn.content for turn in trace.turns] == expected


def test_paths_stay_consistent_between_call_and_result() -> None:
    trace = _trace(
        Turn(role="assistant", tool_calls=[ToolCall("c", "Read", {"file_path": "/Users/alice/app/a.py"})]),
        Turn(role="tool", tool_call_id="c", content="/Users/alice/app/a.py: no such file\n/Users/bob/app/a.py exists"),
        cwd="/Users/alice/app",
    )
    trace.source.file = "/Users/alice/.claude/projects/-Users-alice-app/s.jsonl"
    redact_trace(trace)
    assert trace.cwd == "/Users/user1/app"
    assert trace.source.file == "/Users/user1/.claude/projects/-Users-user1-app/s.jsonl"
    assert trace.turns[0].tool_calls[0].arguments == {"file_path": "/Users/user1/app/a.py"}
    assert trace.turns[1].content == "/Users/user1/app/a.py: no such file\n/Users/user2/app/a.py exists"


def test_structural_fields_stay() -> None:
    trace = _trace(
        Turn(role="assistant", id="msg_01" + "Ab3" * 8, tool_calls=[ToolCall("toolu_01" + "Xy9" * 8, "Bash", {})])
    )
    trace.session_id = "0b9c1d2e-3f40-4a5b-8c6d-7e8f9a0b1c2d"
    before = _text_of(trace)
    assert redact_trace(trace) == {}
    assert _text_of(trace) == before


# Every pattern of the library, by an example of its own: whatever it matches, the gate lets through.
@pytest.mark.parametrize(("pattern"), [pattern for pattern, _, _ in _library_patterns()], ids=lambda p: p.pattern[:40])
def test_gates_let_through_what_the_library_finds(pattern: re.Pattern[str]) -> None:
    gates, _ = _rules()

    @settings(max_examples=25, deadline=None)
    @given(st.from_regex(pattern, alphabet=st.sampled_from(string.printable[:96])))
    def check(text: str) -> None:
        assert gates.matching(text.encode("utf-8", "surrogatepass")), wider_gate(pattern)

    check()


def test_private_key_headers_of_the_library_are_known() -> None:
    from detect_secrets.plugins.private_key import PrivateKeyDetector

    body = corpus._chars(corpus.BASE64, 64)(random.Random(0))
    for pattern in PrivateKeyDetector.denylist:
        name = pattern.pattern.removeprefix("BEGIN ")
        fence = "---- " if name.startswith("SSH2") else "-----"
        block = f"{fence}BEGIN {name}{fence[::-1]}\n{body}\n{fence}END {name}{fence[::-1]}"
        if name.startswith("PuTTY"):
            block = f"{name}: ssh-rsa\n{body}\nPrivate-MAC: {'0a' * 20}"
        assert Redactor().text(block) == "<PRIVATE_KEY_1>", name


_fragments = st.one_of(
    st.sampled_from(sorted(corpus.KINDS)).flatmap(
        lambda kind: st.integers(0, 3).map(lambda seed: _made_up(kind, seed))
    ),
    st.sampled_from(
        [
            "password=",
            "TOKEN=",
            '"api_key": "',
            '"',
            "://a:",
            "@host.io/",
            "/home/",
            "/Users/",
            "\\n",
            "\n",
            " ",
            "-p ",
            "é",
            "à",
            "Å…",
            "<",
        ]
    ),
    st.text(alphabet=string.ascii_letters + string.digits + " =:/@.\\\"'-_<>é\ud800", max_size=12),
)


@settings(max_examples=300, deadline=None)
@given(st.lists(_fragments, max_size=12).map("".join))
@example("password=<PASSWORD_1>x1y2z3")
@example("/home/user1/a /home/u/b")
@example("/home/abcd/.a abcd /Users/Abcd/abcd ls -Users-abcd")
def test_redacting_twice_changes_nothing(text: str) -> None:
    once = _redacted(Redactor(), text)
    assert _redacted(Redactor(), once) == once


@settings(max_examples=200, deadline=None)
@given(st.lists(_fragments, max_size=10).map("".join))
def test_the_same_text_is_redacted_the_same_way(text: str) -> None:
    redactor = Redactor()
    first = redactor.text(text)
    assert _redacted(redactor, text) == redactor.again(first)


@settings(max_examples=300, deadline=None)
@given(st.text(alphabet=st.characters(exclude_characters="@/\\-:=.,_", codec="utf-8"), max_size=200))
def test_text_without_anchors_stays(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(text) == text or redactor.counts
    if not any(map(str.isdigit, text)):
        assert redactor.text(text) == text


def test_web_tokens_go_with_their_signature_and_when_cut() -> None:
    token = _made_up("json_web_token")
    assert Redactor().text(f"x {token}, y") == "x <JSON_WEB_TOKEN_1>, y"
    assert Redactor().text(f"x {token[:80]}") == "x <JSON_WEB_TOKEN_1>"


def test_broken_text_survives() -> None:
    assert Redactor().text(f"/home/{'a' * 63}é/x") == "/home/user1/x"
    assert Redactor().text("sshpass -p a1b2c3àà x") == "sshpass -p <PASSWORD_1> x"
    assert Redactor().text("https://me:a1b2c3àà@h.io") == "https://me:<PASSWORD_1>@h.io"
    secret = _made_up("generic_secret")
    assert Redactor().text(f"TOKEN={secret}à é") == "TOKEN=<SECRET_1> é"
    assert Redactor().text("caf\ud800é a.b@c-d.io 日本") == "caf\ud800é <EMAIL_1> 日本"
