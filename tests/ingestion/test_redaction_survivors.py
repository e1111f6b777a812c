"""Redaction: secrets as they are really drawn, and those that once survived."""

from __future__ import annotations

import base64
import random
import string
import sys
from collections import Counter
from pathlib import Path

import pytest

from composer_replication.ingestion.redaction import Redactor, redact_trace
from composer_replication.traces import Source, Trace, Turn

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import redaction_corpus as corpus


def _drawn(alphabet: str, length: int, seed: object = 0) -> str:
    return "".join(random.Random(str(seed)).choices(alphabet, k=length))


@pytest.mark.parametrize(
    ("prefix", "alphabet", "length", "kind"),
    [
        ("hf_", string.ascii_letters, 34, "HUGGING_FACE_TOKEN"),
        ("hf_", string.ascii_lowercase, 34, "HUGGING_FACE_TOKEN"),
        ("AKIA", string.ascii_uppercase, 16, "AWS_ACCESS_KEY"),
        ("ASIA", string.ascii_uppercase, 16, "AWS_ACCESS_KEY"),
        ("glpat-", string.ascii_letters, 20, "GITLAB_TOKEN"),
        ("sk_live_", string.ascii_letters, 24, "STRIPE_ACCESS_KEY"),
        ("ghp_", string.ascii_letters, 36, "GITHUB_TOKEN"),
        ("npm_", string.ascii_letters, 36, "NPM_TOKEN"),
    ],
)
def test_a_prefix_needs_no_digit(prefix: str, alphabet: str, length: int, kind: str) -> None:
    assert Redactor().text(f"use {prefix}{_drawn(alphabet, length)} here") == f"use <{kind}_1> here"


@pytest.mark.parametrize(
    "text",
    [
        "hf_" + "x" * 34,
        "ghp_" + "abc" * 12,
        "AKIA" + "X" * 16,
        "glpat-the-name-of-some-branch-or-file",
        "sk-ant-words-in-the-name-of-some-file",
    ],
)
def test_a_prefix_before_a_mask_or_words_stays(text: str) -> None:
    assert Redactor().text(f"use {text} here") == f"use {text} here"


@pytest.mark.parametrize("seed", [3, 4, 5])
def test_recall_on_more_seeds(seed: int) -> None:
    found = corpus.recall(list(corpus.planted(seed, per_kind=200)))
    assert {kind: good / total for kind, (good, total) in found.items() if good < 0.99 * total} == {}
    good, total = map(sum, zip(*found.values(), strict=True))
    assert good >= 0.99 * total


def test_the_corpus_draws_from_the_real_alphabets() -> None:
    rng = random.Random(0)
    tokens = [corpus.KINDS["hugging_face"].make(rng) for _ in range(20)]
    assert all(token.removeprefix("hf_").isalpha() for token in tokens)
    ids = [corpus.KINDS["aws_access_key"].make(rng) for _ in range(200)]
    assert set("".join(ids)) == set(string.ascii_uppercase + "234567")
    passwords = [corpus.KINDS["password_alphanumeric"].make(rng) for _ in range(300)]
    assert {len(password) for password in passwords} == set(range(12, 17))
    assert any(password.isalpha() for password in passwords)
    assert any(not corpus.KINDS["gitlab"].make(rng)[-1].isalnum() for _ in range(300))


@pytest.mark.parametrize("value", ["qKdjEwQmzPlx", "XvbTTkaqZ", "aBxQrtLLpw"])
@pytest.mark.parametrize(
    "text",
    [
        "DB_PASSWORD={}\n",
        'password = "{}"',
        '"clientSecret": "{}"',
        "  password: {}\n",
        "export API_TOKEN={}\n",
        "run --password {} now",
    ],
)
def test_letters_that_mix_case_are_secrets(text: str, value: str) -> None:
    redacted = Redactor().text(text.format(value))
    assert value not in redacted
    assert "_1>" in redacted


@pytest.mark.parametrize(
    "text",
    [
        'password = "invalidPassword"',
        'token: "nextContinuationToken"',
        '"secret": "DatabaseCredentials"',
        'password="getHTTPPassword"',
        'token = "userAPIToken"',
        "PASSWORD=correcthorsebattery\n",
        "password: Required\n",
        "DB_PASSWORD=dbPasswordValue\n",
        "connect(password=aBxQrtLLpw)",
        "password=aBxQrtLLpw.value",
        "token=aBxQrtLLpw(user)",
        "connect(host, password=aBxQrtLLpw, port=1)",
        'api_token: "ACCESSTOKEN"',
        "password=getPassword(user)",
        'token = "iOSDeviceToken"',
        "password: ~/secrets/dbPAssWord\n",
    ],
)
def test_words_and_names_in_letters_stay(text: str) -> None:
    assert Redactor().text(text) == text


@pytest.mark.parametrize(
    "address",
    [
        "jane@corp.com",
        "jane@company.com",
        "jane@acme.io",
        "jane@site.org",
        "jane@server.net",
        "jane@host.de",
        "me@smith-family.org",
        "name@smith.io",
        "user@smith.io",
        "admin@smith.io",
        "root@smith.io",
        "jane@myexample.com",
    ],
)
def test_real_addresses_go(address: str) -> None:
    assert Redactor().text(f"mail {address}, please") == "mail <EMAIL_1>, please"


@pytest.mark.parametrize(
    "address",
    [
        "jane@example.com",
        "jane@mail.example.org",
        "jane@example.co.uk",
        "jane@shop.test",
        "jane@shop.invalid",
        "jane@shop.example",
        "jane@localhost",
        "git@github.com",
        "hg@bitbucket.org",
        "svn@svn.smith.io",
        "noreply@anthropic.com",
        "no-reply@smith.io",
        "do-not-reply@smith.io",
    ],
)
def test_addresses_of_nobody_stay(address: str) -> None:
    assert Redactor().text(f"mail {address}, please") == f"mail {address}, please"


_AUTH = base64.b64encode(b"robot:correct horse").decode()
_SIGNATURE = "kDjwQzX" * 5 + "%2FabcdeF%2B%3D"
_FLY = "fm2_" + _drawn(string.ascii_letters + string.digits + "+/", 120) + "=="


@pytest.mark.parametrize(
    ("text", "redacted"),
    [
        (f'{{"auths": {{"a.io": {{"auth": "{_AUTH}"}}}}}}', '{"auths": {"a.io": {"auth": "<AUTHORIZATION_1>"}}}'),
        (f'{{\\"auth\\": \\"{_AUTH}\\"}}', '{\\"auth\\": \\"<AUTHORIZATION_1>\\"}'),
        (f"fly {_FLY},{_FLY[:-9]} x", "fly <FLY_TOKEN_1>,<FLY_TOKEN_2> x"),
        (
            f"https://s.blob.core.windows.net/a?sv=2022-11-02&sig={_SIGNATURE}&se=2030",
            "https://s.blob.core.windows.net/a?sv=2022-11-02&sig=<URL_SIGNATURE_1>&se=2030",
        ),
        (f'"https://a.io/b?sig={_SIGNATURE}"', '"https://a.io/b?sig=<URL_SIGNATURE_1>"'),
        (f"https://a.io/b?a=1\\u0026sig={_SIGNATURE}", "https://a.io/b?a=1\\u0026sig=<URL_SIGNATURE_1>"),
        ("https://a.io/b?sig=TBLoFtmYbqMxXXXC2ST%2Fem4egPl%3D", "https://a.io/b?sig=<URL_SIGNATURE_1>"),
        ("PASS=hunter2\n", "PASS=<PASSWORD_1>\n"),
        ("USER=a PASS=hunter2 ./run", "USER=a PASS=<PASSWORD_1> ./run"),
        ('auth: {user: "a", pass: "hunter2"}', 'auth: {user: "a", pass: "<PASSWORD_1>"}'),
        ("password=%24ecret123\n", "password=<PASSWORD_1>\n"),
        ("https://a.io/login?user=a&password=%24ecret123&b=1", "https://a.io/login?user=a&password=<PASSWORD_1>&b=1"),
        ("DB_PASSWORD==aB3dE6gH9\n", "DB_PASSWORD=<PASSWORD_1>\n"),
        ("DB_PASSWORD=~aB3dE6gH9\n", "DB_PASSWORD=<PASSWORD_1>\n"),
        ("docker run -e DB_PASSWORD==aB3dE6gH9 app", "docker run -e DB_PASSWORD=<PASSWORD_1> app"),
        ("DB_PASSWORD='*aB3+E6gH9'\n", "DB_PASSWORD='<PASSWORD_1>'\n"),
        ("DB_PASSWORD='%aB3+E6gH9'\n", "DB_PASSWORD='<PASSWORD_1>'\n"),
    ],
)
def test_what_once_survived_goes(text: str, redacted: str) -> None:
    assert Redactor().text(text) == redacted


def test_a_docker_login_goes_from_a_mapping_too() -> None:
    assert Redactor().value({"auths": {"a.io": {"auth": _AUTH}}}) == {"auths": {"a.io": {"auth": "<SECRET_1>"}}}


@pytest.mark.parametrize(
    "text",
    [
        "PASS: test_login2\n",
        "PASS: testlogin2\nFAIL: testlogout3\n",
        "pass: 1234567\n",
        "pass=$((pass+1)) PASS=$PASS1",
        'passed: "run2of3", bypass="mode2x"',
        '"auth": "required", auth: "oauth2"',
        "PASSWORD=%DB_PASSWORD% TOKEN=%DEPLOY_TOKEN_2%",
        'password = "%s1" % (a, b)',
        "token = *token2; password = &password2;",
        "password: *default_password2\n",
        "https://a.io/b?signature=none&sig=short1",
        "https://a.io/b?sig=your-signature-goes-in-here",
    ],
)
def test_what_only_resembles_a_survivor_stays(text: str) -> None:
    assert Redactor().text(text) == text


def test_known_secrets_are_found_without_trying_each() -> None:
    def calls(count: int) -> tuple[int, Trace]:
        secrets = [_drawn(string.ascii_letters + string.digits, 20, n) + "7a" for n in range(count)]
        turns = [Turn(role="tool", content=f"API_TOKEN={secret}\n") for secret in secrets]
        turns += [Turn(role="assistant", content=f"run {one} in src/module{n}.py") for n, one in enumerate(secrets)]
        turns.append(Turn(role="tool", content="\n".join(secrets)))
        trace = Trace(trace_id="t", turns=turns, source=Source(file="a", format="f"))
        events: Counter[str] = Counter()
        sys.setprofile(lambda _frame, event, _argument: events.update([event]))
        try:
            redact_trace(trace)
        finally:
            sys.setprofile(None)
        return events.total(), trace

    calls(500)  # what is compiled once
    few, (many, trace) = calls(500)[0], calls(4000)
    assert many < 16 * few  # 8 if it is linear, 64 if each is tried on each
    assert trace.turns[4000].content == "run <SECRET_1> in src/module0.py"
    assert trace.turns[-1].content == "\n".join(f"<SECRET_{n}>" for n in range(1, 4001))


def test_known_secrets_are_found_wherever_a_word_ends() -> None:
    redactor = Redactor()
    short, long, symbols = "aB3dE6gH", "aB3dE6gH-kL9mN2pQ", "+aB3.x-Zq9!"
    redactor.text(f"A_PASSWORD='{short}'\nB_PASSWORD='{long}'\nC_PASSWORD='{symbols}'\n")
    assert redactor.again(f"{long} {short}") == "<PASSWORD_2> <PASSWORD_1>"
    assert redactor.again(f"x\\n{short}\\n{long}") == "x\\n<PASSWORD_1>\\n<PASSWORD_2>"
    assert redactor.again(f"x{short} {short}9") == f"x{short} {short}9"
    assert redactor.again(f"a{symbols} {symbols}.") == f"a{symbols} <PASSWORD_3>."
    assert redactor.again(f"{short}é{short}") == "<PASSWORD_1>é<PASSWORD_1>"
    assert redactor.counts["PASSWORD"] == 3 + 2 + 2 + 1 + 2
