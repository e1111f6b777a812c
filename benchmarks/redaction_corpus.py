"""Traces with planted secrets, and text without any: how much redaction finds, how much it damages, how fast it is.

All secrets are made up at run time from a seed, so that nothing in the repository looks like one.

    python benchmarks/redaction_corpus.py [--json] [--seed N] [--per-kind N] [--megabytes N]
"""

from __future__ import annotations

import argparse
import base64
import importlib
import json
import pkgutil
import random
import string
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from urllib.parse import quote

import msgspec

from composer_replication.ingestion.redaction import Redactor, redact_trace
from composer_replication.traces import Source, ToolCall, Trace, Turn

BASE32 = string.ascii_uppercase + "234567"
UPPER_DIGITS = string.ascii_uppercase + string.digits
ALPHANUMERIC = string.ascii_letters + string.digits
URL_SAFE = ALPHANUMERIC + "_-"
BASE64 = ALPHANUMERIC + "+/"
HEX = "0123456789abcdef"
PASSWORD = ALPHANUMERIC + "!%^*+=?~"

Maker = Callable[[random.Random], str]


@dataclass(frozen=True)
class Kind:
    """A kind of secret: how one is made up, the variable it usually stands in, and the places it is planted in."""

    make: Maker
    variable: str
    places: tuple[str, ...]


@dataclass(frozen=True)
class Case:
    """A trace, and what must no longer be in it once it is redacted."""

    kind: str
    place: str
    trace: Trace
    secrets: tuple[str, ...]


def _chars(alphabet: str, length: int, prefix: str = "", suffix: str = "") -> Maker:
    """Random characters, whatever comes."""
    return lambda rng: prefix + "".join(rng.choices(alphabet, k=length)) + suffix


def _chars_between(alphabet: str, shortest: int, longest: int) -> Maker:
    return lambda rng: "".join(rng.choices(alphabet, k=rng.randint(shortest, longest)))


def _joined(*parts: Maker | str) -> Maker:
    return lambda rng: "".join(part if isinstance(part, str) else part(rng) for part in parts)


def _digits(length: int) -> Maker:
    return lambda rng: str(rng.randrange(10 ** (length - 1), 10**length))


def _web_token(rng: random.Random) -> str:
    def part(value: object) -> str:
        return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()

    claims = {"sub": str(rng.randrange(10**9)), "iat": rng.randrange(10**9), "name": _word(rng)}
    return f"{part({'alg': 'HS256', 'typ': 'JWT'})}.{part(claims)}.{_chars(URL_SAFE, 43)(rng)}"


def _pem(name: str) -> Maker:
    def make(rng: random.Random) -> str:
        body = "".join(rng.choices(BASE64, k=64 * 8 + 40))
        lines = [body[i : i + 64] for i in range(0, len(body), 64)]
        return "\n".join([f"-----BEGIN {name}-----", *lines, f"-----END {name}-----"])

    return make


def _cut_pem(rng: random.Random) -> str:
    return _pem("OPENSSH PRIVATE KEY")(rng)[:400]


def _uuid(rng: random.Random) -> str:
    digits = "".join(rng.choices(HEX, k=32))
    return "-".join((digits[:8], digits[8:12], digits[12:16], digits[16:20], digits[20:]))


def _word(rng: random.Random) -> str:
    return "".join(rng.choices(string.ascii_lowercase, k=rng.randrange(4, 9)))


def _mail(rng: random.Random) -> str:
    domain = rng.choice(["com", "org", "io", "dev", "de", "co.uk", "ai"])
    return f"{_word(rng)}.{_word(rng)}{rng.randrange(100)}@{_word(rng)}-{_word(rng)}.{domain}"


# Where a variable's name stands beside the secret.
_NAMED = (
    "env_file",
    "json_argument",
    "docker_run",
    "yaml",
    "python_source",
    "shell_history",
    "json_result",
    "toml",
    "traceback",
)
# Where only the secret itself stands.
_BARE = ("curl_header", "git_remote", "prose", "escaped", "numbered_lines", "diff")
_ANY = _NAMED + _BARE

KINDS: dict[str, Kind] = {
    "aws_access_key": Kind(_chars(BASE32, 16, "AKIA"), "AWS_ACCESS_KEY_ID", _ANY),
    "aws_secret_key": Kind(_chars(BASE64, 40), "AWS_SECRET_ACCESS_KEY", _NAMED),
    "github_classic": Kind(_chars(ALPHANUMERIC, 36, "ghp_"), "GITHUB_TOKEN", _ANY),
    "github_fine_grained": Kind(
        _joined("github_pat_", _chars(ALPHANUMERIC, 22), "_", _chars(ALPHANUMERIC, 59)), "GH_TOKEN", _ANY
    ),
    "gitlab": Kind(_chars(URL_SAFE, 20, "glpat-"), "GITLAB_TOKEN", _ANY),
    "slack_bot": Kind(
        _joined("xoxb-", _digits(11), "-", _digits(12), "-", _chars(ALPHANUMERIC, 24)), "SLACK_TOKEN", _ANY
    ),
    "slack_user": Kind(
        _joined("xoxp-", _digits(11), "-", _digits(11), "-", _digits(12), "-", _chars(HEX, 32)),
        "SLACK_USER_TOKEN",
        _ANY,
    ),
    "slack_webhook": Kind(
        _joined(
            "https://hooks.slack.com/services/T", _chars(UPPER_DIGITS, 8), "/B", _chars(UPPER_DIGITS, 8), "/",
            _chars(ALPHANUMERIC, 24),
        ),
        "SLACK_WEBHOOK_URL",
        ("env_file", "json_argument", "yaml", "prose", "escaped"),
    ),
    "stripe_live": Kind(_chars(ALPHANUMERIC, 24, "sk_live_"), "STRIPE_SECRET_KEY", _ANY),
    "twilio_key": Kind(_chars(HEX, 32, "SK"), "TWILIO_API_KEY", _ANY),
    "twilio_auth_token": Kind(_chars(HEX, 32), "TWILIO_AUTH_TOKEN", _NAMED),
    "sendgrid": Kind(_joined("SG.", _chars(URL_SAFE, 22), ".", _chars(URL_SAFE, 43)), "SENDGRID_API_KEY", _ANY),
    "mailgun": Kind(_chars(HEX, 32, "key-"), "MAILGUN_API_KEY", _ANY),
    "mailchimp": Kind(_chars(HEX, 32, suffix="-us12"), "MAILCHIMP_API_KEY", _ANY),
    "openai_legacy": Kind(
        _joined("sk-", _chars(ALPHANUMERIC, 20), "T3BlbkFJ", _chars(ALPHANUMERIC, 20)), "OPENAI_API_KEY", _ANY
    ),
    "openai_project": Kind(_chars(URL_SAFE, 120, "sk-proj-"), "OPENAI_API_KEY", _ANY),
    "anthropic": Kind(_joined("sk-ant-api03-", _chars(URL_SAFE, 93), "AA"), "ANTHROPIC_API_KEY", _ANY),
    "openrouter": Kind(_chars(HEX, 64, "sk-or-v1-"), "OPENROUTER_API_KEY", _ANY),
    "google_api_key": Kind(_chars(URL_SAFE, 35, "AIza"), "GOOGLE_API_KEY", _ANY),
    "gcp_service_account": Kind(_pem("PRIVATE KEY"), "private_key", ("service_account",)),
    "azure_storage": Kind(_chars(BASE64, 86, suffix="=="), "AZURE_STORAGE_KEY", ("azure_connection",)),
    "npm": Kind(_chars(ALPHANUMERIC, 36, "npm_"), "NPM_TOKEN", (*_ANY, "npmrc")),
    "pypi": Kind(_chars(URL_SAFE, 120, "pypi-AgEIcHlwaS5vcmc"), "TWINE_PASSWORD", _ANY),
    "hugging_face": Kind(_chars(string.ascii_letters, 34, "hf_"), "HF_TOKEN", _ANY),
    "discord": Kind(
        _joined("M", _chars(ALPHANUMERIC, 23), ".", _chars(ALPHANUMERIC, 6), ".", _chars(ALPHANUMERIC, 27)),
        "DISCORD_TOKEN",
        _ANY,
    ),
    "telegram": Kind(
        _joined(_digits(10), ":AA", _chars(URL_SAFE, 33)), "TELEGRAM_BOT_TOKEN", (*_NAMED, "prose", "escaped")
    ),
    "json_web_token": Kind(_web_token, "ACCESS_TOKEN", _ANY),
    "cloudflare": Kind(_chars(URL_SAFE, 40), "CLOUDFLARE_API_TOKEN", _NAMED),
    "digitalocean": Kind(_chars(HEX, 64, "dop_v1_"), "DIGITALOCEAN_TOKEN", _ANY),
    "heroku": Kind(_uuid, "HEROKU_API_KEY", _NAMED),
    "datadog": Kind(_chars(HEX, 32), "DD_API_KEY", _NAMED),
    "linear": Kind(_chars(ALPHANUMERIC, 40, "lin_api_"), "LINEAR_API_KEY", _ANY),
    "vault": Kind(_chars(URL_SAFE, 90, "hvs."), "VAULT_TOKEN", _ANY),
    "databricks": Kind(_chars(HEX, 32, "dapi"), "DATABRICKS_TOKEN", _ANY),
    "generic_secret": Kind(_chars(URL_SAFE, 32), "FOO_SECRET", _NAMED),
    "password": Kind(
        _chars(PASSWORD, 14), "DB_PASSWORD", (*_NAMED, "password_option", "mysql_option", "netrc", "curl_user")
    ),
    "password_alphanumeric": Kind(
        _chars_between(ALPHANUMERIC, 12, 16),
        "DB_PASSWORD",
        (*_NAMED, "password_option", "mysql_option", "netrc", "curl_user"),
    ),
    "fly": Kind(_chars(BASE64, 400, "fm2_"), "FLY_API_TOKEN", (*_NAMED, "prose", "escaped", "diff")),
    "docker_login": Kind(
        lambda rng: base64.b64encode(f"{_word(rng)}:{_chars(ALPHANUMERIC, 12)(rng)}".encode()).decode(),
        "",
        ("docker_config",),
    ),
    "azure_signature": Kind(
        lambda rng: quote(base64.b64encode(rng.randbytes(32)).decode(), safe=""), "", ("signed_url",)
    ),
    "url_password": Kind(_chars(ALPHANUMERIC + "!-._~", 16), "", ("url", "git_remote_password")),
    "postgres": Kind(_chars(ALPHANUMERIC, 16), "", ("postgres",)),
    "mysql": Kind(_chars(ALPHANUMERIC, 16), "", ("mysql",)),
    "mongodb": Kind(_chars(ALPHANUMERIC, 16), "", ("mongodb",)),
    "redis": Kind(_chars(ALPHANUMERIC, 24), "", ("redis",)),
    "authorization_bearer": Kind(_chars(URL_SAFE, 40), "", ("bearer", "bearer_json", "bearer_python")),
    "authorization_basic": Kind(
        lambda rng: base64.b64encode(f"{_word(rng)}:{_chars(ALPHANUMERIC, 12)(rng)}".encode()).decode(), "", ("basic",)
    ),
    "rsa_key": Kind(_pem("RSA PRIVATE KEY"), "", ("pem", "pem_numbered", "pem_escaped")),
    "openssh_key": Kind(_pem("OPENSSH PRIVATE KEY"), "", ("pem", "pem_numbered", "pem_escaped")),
    "cut_off_key": Kind(_cut_pem, "", ("pem",)),
    "pgp_key": Kind(_pem("PGP PRIVATE KEY BLOCK"), "", ("pem",)),
    "mail_address": Kind(
        _mail, "GIT_AUTHOR_EMAIL", ("env_file", "prose", "escaped", "json_argument", "git_trailer", "git_log")
    ),
    "home_user": Kind(
        lambda rng: _word(rng) + _word(rng), "", ("home_linux", "home_mac", "home_windows", "home_folder", "login")
    ),
}  # fmt: skip


def _bash(command: str, result: str, *, error: bool = False) -> list[Turn]:
    call = ToolCall(id="toolu_01AbCdEfGhIjKlMnOpQrStUv", name="Bash", arguments={"command": command})
    return [
        Turn(role="assistant", content="Let me look.", tool_calls=[call]),
        Turn(role="tool", tool_call_id=call.id, content=result, is_error=error),
    ]


def _call(name: str, arguments: dict[str, object], result: str = "ok") -> list[Turn]:
    call = ToolCall(id="toolu_01ZyXwVuTsRqPoNmLkJiHgFe", name=name, arguments=arguments)
    return [Turn(role="assistant", tool_calls=[call]), Turn(role="tool", tool_call_id=call.id, content=result)]


def _pascal(variable: str) -> str:
    first, *rest = variable.lower().split("_")
    return first + "".join(map(str.capitalize, rest))


PLACES: dict[str, Callable[[str, str], list[Turn]]] = {
    "env_file": lambda v, s: _bash("cat .env", f"NODE_ENV=development\nPORT=3000\n{v}={s}\nLOG_LEVEL=debug\n"),
    "json_argument": lambda v, s: _call("mcp__deploy__run", {"service": "api", "env": {v: s, "REGION": "eu-west-1"}}),
    "docker_run": lambda v, s: _bash(f"docker run --rm -e {v}={s} -p 8080:80 app:latest", "listening on :80"),
    "yaml": lambda v, s: _bash("cat config.yml", f"service:\n  name: api\n  {v.lower()}: {s}\n  replicas: 2\n"),
    "python_source": lambda v, s: _call(
        "Edit", {"file_path": "settings.py", "old_string": "DEBUG = True", "new_string": f'DEBUG = True\n{v} = "{s}"\n'}
    ),
    "shell_history": lambda v, s: _bash("tail -3 ~/.bash_history", f"ls -la\nexport {v}={s}\nmake deploy\n"),
    "json_result": lambda v, s: _bash("cat config.json", json.dumps({"port": 80, _pascal(v): s}, indent=2)),
    "toml": lambda v, s: _bash("cat app.toml", f'[service]\nport = 80\n{v.lower()} = "{s}"\n'),
    "traceback": lambda v, s: _bash(
        "python app.py",
        "Traceback (most recent call last):\n"
        f'  File "/app/app.py", line 12, in <module>\n    connect(region, {v.lower()}="{s}")\n'
        "ConnectionError: timed out",
        error=True,
    ),
    "curl_header": lambda v, s: _bash(f"curl -s -H 'Authorization: Bearer {s}' https://api.service.io/v1/me", "{}"),
    "git_remote": lambda v, s: _bash(
        "git remote -v", f"origin\thttps://{s}@github.com/org/app.git (fetch)\norigin\thttps://{s}@github.com/a.git"
    ),
    "prose": lambda v, s: [Turn(role="user", content=f"Please use {s} for the requests, it is still valid.")],
    "escaped": lambda v, s: _bash("cat out.log", f'{{"msg": "line one\\n{s}\\nline three", "level": "info"}}'),
    "numbered_lines": lambda v, s: _call("Read", {"file_path": "a.ts"}, f'     1→import a\n     2→send("{s}")\n'),
    "diff": lambda v, s: _bash("git diff", f"+++ b/x.py\n@@ -1,2 +1,2 @@\n-client = C('{s}')\n+client = C(read())\n"),
    "npmrc": lambda v, s: _bash("cat .npmrc", f"save-exact=true\n//registry.npmjs.org/:_authToken={s}\n"),
    "service_account": lambda v, s: _bash(
        "cat key.json", json.dumps({"type": "service_account", "private_key": s + "\n", "project_id": "a"}, indent=2)
    ),
    "azure_connection": lambda v, s: _bash(
        "az storage account show-connection-string",
        f"DefaultEndpointsProtocol=https;AccountName=store;AccountKey={s};EndpointSuffix=core.windows.net",
    ),
    "password_option": lambda v, s: _bash(f"./manage.sh create-user --name alice --password '{s}'", "created"),
    "mysql_option": lambda v, s: _bash(f"mysql -h db -u app -p'{s}' shop -e 'select 1'", "1"),
    "netrc": lambda v, s: _bash("cat ~/.netrc", f"machine api.service.io login deploy password {s}\n"),
    "curl_user": lambda v, s: _bash(f"curl -u 'deploy:{s}' https://api.service.io/v1/releases", "[]"),
    "url": lambda v, s: _bash(f"wget https://deploy:{s}@files.service.io/a.tgz", "saved"),
    "git_remote_password": lambda v, s: _bash("git remote -v", f"origin\thttps://deploy:{s}@git.io/app.git (fetch)"),
    "postgres": lambda v, s: _bash("grep DATABASE .env", f"DATABASE_URL=postgresql://app:{s}@db.internal:5432/shop"),
    "mysql": lambda v, s: _call("Write", {"content": f'engine = create_engine("mysql+pymysql://app:{s}@db/shop")'}),
    "mongodb": lambda v, s: _bash(f'mongosh "mongodb+srv://app:{s}@cluster0.abcde.mongodb.net/shop"', "connected"),
    "redis": lambda v, s: _bash("env | grep REDIS", f"REDIS_URL=redis://:{s}@cache:6379/0"),
    "bearer": lambda v, s: _bash("curl -v https://a.io", f"> GET / HTTP/1.1\n> Authorization: Bearer {s}\n>\n"),
    "bearer_json": lambda v, s: _call("WebFetch", {"url": "https://a.io", "headers": {"Authorization": f"Bearer {s}"}}),
    "bearer_python": lambda v, s: _call("Write", {"content": f'headers = {{"Authorization": "Bearer {s}"}}\n'}),
    "basic": lambda v, s: _bash(f'curl -H "Authorization: Basic {s}" https://api.service.io', "{}"),
    "docker_config": lambda v, s: _bash(
        "cat ~/.docker/config.json", json.dumps({"auths": {"registry.io": {"auth": s}}}, indent=2)
    ),
    "signed_url": lambda v, s: _bash(
        f"curl -O 'https://store.blob.core.windows.net/a/b.zip?sv=2022-11-02&sp=r&sig={s}&se=2030-01-01'", "ok"
    ),
    "pem": lambda v, s: _bash("cat id_rsa", f"{s}\n"),
    "pem_numbered": lambda v, s: _call(
        "Read", {"file_path": "id_rsa"}, "\n".join(f"{n:6}→{line}" for n, line in enumerate(s.splitlines(), 1))
    ),
    "pem_escaped": lambda v, s: _bash("cat config.json", json.dumps({"tls": {"cert": None, "pem": s}})),
    "git_trailer": lambda v, s: _bash("git commit -F-", f"[main 0a1b2c3] Fix\n\nCo-Authored-By: Some One <{s}>\n"),
    "git_log": lambda v, s: _bash("git log -1", f"commit 9fceb02d0ae598e\nAuthor: Some One <{s}>\n"),
    "home_linux": lambda v, s: _bash(f"ls /home/{s}/app", f"/home/{s}/app/a.py\ngcc -I/home/{s}/a\nHOME=/home/{s}\n"),
    "home_mac": lambda v, s: _call("Read", {"file_path": f"/Users/{s}/app/a.py"}, f"file:///Users/{s}/app/a.py"),
    "home_windows": lambda v, s: _bash("dir", f"C:\\Users\\{s}\\app\n" + json.dumps({"cwd": f"C:\\Users\\{s}\\app"})),
    "login": lambda v, s: _bash(
        f"git checkout -b {s}/fix && ls -l /Users/{s}/app",
        f"-rw-r--r--  1 {s}  staff  12 Jan  5 10:00 a.py\n/tmp/pytest-of-{s}/pytest-0\n{s}@host:~$ whoami\n{s}\n",
    ),
    "home_folder": lambda v, s: _bash("ls ~/.claude", f"-Users-{s}-work-app\n/root/projects/-home-{s}-app/a.jsonl\n"),
}  # fmt: skip


def planted(seed: int = 0, per_kind: int = 40) -> Iterator[Case]:
    """At least `per_kind` cases of every kind, and every place of each kind at least once."""
    rng = random.Random(seed)
    for name, kind in KINDS.items():
        for number in range(max(per_kind, len(kind.places))):
            place = kind.places[number % len(kind.places)]
            secret = kind.make(rng)
            turns = [
                Turn(role="user", content="Please get the service running again."),
                *PLACES[place](kind.variable, secret),
            ]
            if place in _NAMED:
                # Once it has been seen with its name, it is known without.
                turns = [
                    *_bash(f"./check.sh '{secret}'", f"checked {secret}"),
                    *turns,
                    *_bash(f"./deploy.sh {secret}", "done"),
                ]
            trace = Trace(
                trace_id=f"{name}-{number}", turns=turns, source=Source(file="session.jsonl", format="generated")
            )
            yield Case(name, place, trace, _parts(secret))


def _parts(secret: str) -> tuple[str, ...]:
    """What must be gone. Of a key of many lines, every line of its body: the name of its kind may stay."""
    lines = [line for line in secret.splitlines() if not line.startswith("-----")]
    return tuple(line for line in lines if len(line) >= 16) if len(lines) > 1 else (secret,)


def recall(cases: Sequence[Case], redact: Callable[[Trace], object] = redact_trace) -> dict[str, tuple[int, int]]:
    """Redact every case; for every kind, how many have nothing of their secrets left, and how many there are."""
    found: dict[str, tuple[int, int]] = {}
    for case in cases:
        redact(case.trace)
        good, total = found.get(case.kind, (0, 0))
        found[case.kind] = (good + (not leaks(case)), total + 1)
    return found


def leaks(case: Case) -> bool:
    """Whether something of the secrets is left in the trace."""
    left = msgspec.json.encode(case.trace).decode()
    return any(part in left or json.dumps(part)[1:-1] in left for part in case.secrets)


def secret_free(seed: int = 0) -> Iterator[str]:
    """Text as traces are full of, that looks like secrets to a careless reader and holds none."""
    rng = random.Random(seed)
    commit, uuid, digest = _chars(HEX, 40)(rng), _uuid(rng), _chars(HEX, 64)(rng)
    image = base64.b64encode(rng.randbytes(3000)).decode()
    identifier = _chars(ALPHANUMERIC, 22)(rng)
    yield f"commit {commit}\nMerge: {commit[:7]} {commit[8:15]}\nDate:   Mon Sep 1 10:00:00 2025\n\n    Fix tokens\n"
    yield f"{uuid} toolu_01{identifier} msg_01{identifier} call_{identifier}"
    yield f"sha256:{digest}\nDigest: sha512-{_chars(BASE64, 86)(rng)}==\n"
    yield f"data:image/png;base64,{image}"
    yield image
    yield f"ssh-rsa AAAAB3NzaC1yc2E{_chars(BASE64, 300)(rng)} key\nssh-ed25519 AAAAC3Nz{_chars(BASE64, 48)(rng)}\n"
    certificate = "\n".join(_chars(BASE64, 64)(rng) for _ in range(6))
    yield f"-----BEGIN CERTIFICATE-----\n{certificate}\n-----END CERTIFICATE-----\n"
    yield f'ETag: "{digest[:32]}"\nx-request-id: {uuid}\nsession_id={uuid}\ntrace: {digest[:32]}\ncache_key: {commit}\n'
    yield f"icon@2x.png x@self.weight getty@tty1.service actions/checkout@v4 pkg@workspace:* image@sha256:{digest}"
    yield from (text.strip("\n") for text in _SECRET_FREE.split("\n\n"))


_SECRET_FREE = r"""
password = os.environ["DB_PASSWORD"]
token: str
api_key=api_key
PASSWORD=$DB_PASS
secret = get_secret("db-2")

def login(username: str, password: str, token: str | None = None) -> Session:
    return Session(password=password)

apiKey: process.env.OPENAI_API_KEY!,
githubToken: string;
  auth: import.meta.env.VITE_TOKEN,
  token: this.config.token2,

API_KEY=<your-key>
TOKEN=***
SECRET=xxxxxxxx
PASSWORD=changeme
PASSWORD=None
export TOKEN=${TOKEN}
KEY=your-api-key-here1

"input_tokens": 100, "output_tokens": 50, "max_tokens": 4096, "cache_read_tokens": 69535, "token_count": 123456

curl -H "Authorization: Bearer $TOKEN" -H "X-Api-Key: ${API_KEY}" https://api.service.io
Authorization: Bearer <token>

git@github.com:org/repo.git
ssh://git@host.io:22/org/repo.git
noreply@anthropic.com
user@example.com
clone git@gitlab.com:a/b.git

@decorator
@app.route('/a')
@types/node@20.1.0 foo@1.2.3 react@next @scope/pkg@1.0.0-beta.1 dotenv@17.2.4 a@v1.2.3

/home/runner/work /Users/Shared/a /root/.ssh /home/ubuntu/a /home/node/app /home/vscode /home/user/x
src/home/index.ts /home/index.html

tests/test_auth.py::test_password_reset[token-1] PASSED
tests/test_auth.py::test_api_key_2 FAILED

if "-----BEGIN PRIVATE KEY-----" in text:
    raise ValueError("a private key")

The password must be at least 8 characters. Password: required. The token expired at 2025-09-01T10:00:00Z.

http://localhost:3000/@vite/client https://user:password@host/db https://a.io/x@y
postgres://postgres:postgres@localhost:5432/app

<input type="password" name="password" placeholder="Password2">
<label for="token">Token 1</label>

nextPageToken: CAUQAA12abcXYZ987
public_key: MCowBQYDK2VwAyEA
primary_key=id
pad_token='<pad>' eos_token_id=50256

tokenizer.json sha256 tokens=1234567 secretName: db-credentials-v2
secretKeyRef:
  name: app-secrets-2
  key: db-password

task-1234567890abcdef1234567890abcdef risk-2024 disk-usage sk-learn key-value ask-2 SKILL_2 ACCESS hf_hub
npm_config_registry

password_hash = bcrypt.hashpw(password.encode(), salt)
if password != confirm_password:
    raise ValueError
assert token == expected
"""


def false_positives(seed: int = 0) -> list[tuple[str, str]]:
    """The secret-free texts that redaction changes, with what became of them."""
    texts = list(secret_free(seed))
    return [(text, redacted) for text in texts if (redacted := Redactor().text(text)) != text]


def text_like_a_log(megabytes: float, seed: int = 0) -> list[str]:
    """Strings as a log has them: mostly code and output, paths everywhere, now and then a secret."""
    rng = random.Random(seed)
    secrets = [turn.content for case in planted(seed, 1) for turn in case.trace.turns if turn.role == "tool"]
    words = [_word(rng) for _ in range(2000)]
    free = [text for text in secret_free(seed) if len(text) < 1000]
    strings: list[str] = []
    size = 0
    while size < megabytes * 1e6:
        lines = [_line(rng, words) for _ in range(rng.choice((1, 3, 20, 60, 200)))]
        if rng.random() < 0.1:
            lines.append(rng.choice(free))
        if rng.random() < 0.01:
            lines.append(rng.choice(secrets))
        strings.append("\n".join(lines))
        size += len(strings[-1])
    return strings


def _line(rng: random.Random, words: Sequence[str]) -> str:
    a, b, c, d = rng.choices(words, k=4)
    return rng.choice(
        (
            f"    {a} = self.{b}({c}, {d}={rng.randrange(1000)})  # {b} {c}",
            f"src/{a}/{b}.py:{rng.randrange(900)}: {c} {d}",
            f"/Users/alice/work/{a}/{b}.ts:{rng.randrange(900)}:{rng.randrange(80)} - {c}",
            f"{rng.randrange(900):6}→  if ({a}.{b} !== {c}) {{ return {d}.map((x) => x.{a}) }}",
            f"{a} {b} {c} {d} {a} the {b} of {c}, and {d} is {a}.",
            f'  "{a}": {{"{b}": "{c} {d}", "{d}": [{rng.randrange(99)}, {rng.randrange(99)}]}},',
        )
    )


def _library_per_line(texts: Sequence[str]) -> None:
    plugins = [plugin() for plugin in _library_plugins()]
    for text in texts:
        for line in text.splitlines():
            for plugin in plugins:
                for _ in plugin.analyze_string(line):
                    pass


def _library_whole_texts(texts: Sequence[str]) -> None:
    patterns = [pattern for plugin in _library_plugins() for pattern in getattr(plugin, "denylist", ())]
    for text in texts:
        for pattern in patterns:
            for _ in pattern.finditer(text):
                pass


def _redactor(texts: Sequence[str]) -> None:
    redactor = Redactor()
    for text in texts:
        redactor.text(text)


def _trace(texts: Sequence[str]) -> None:
    turns = [Turn(role="tool", content=text) for text in texts]
    redact_trace(Trace(trace_id="t", turns=turns, source=Source(file="a", format="generated")))


def _library_plugins() -> list[type]:
    """All plugins but the entropy ones, and the one for addresses."""
    package = importlib.import_module("detect_secrets.plugins")
    found = []
    for module in pkgutil.iter_modules(package.__path__):
        if module.name not in ("base", "high_entropy_strings", "ip_public"):
            names = vars(importlib.import_module(f"detect_secrets.plugins.{module.name}"))
            found += [v for v in names.values() if isinstance(v, type) and v.__module__.endswith(module.name)]
    return found


# How much of the text a contestant gets: the slow ones would take minutes.
CONTESTANTS: dict[str, tuple[Callable[[Sequence[str]], None], float]] = {
    "detect-secrets, line by line": (_library_per_line, 0.05),
    "detect-secrets' patterns, whole texts": (_library_whole_texts, 0.1),
    "Redactor.text": (_redactor, 1.0),
    "redact_trace": (_trace, 1.0),
}


def throughput(megabytes: float, seed: int = 0, repeats: int = 3) -> dict[str, float]:
    """Megabytes of generated text per second and process, the median of the repeats; contestants take turns."""
    texts = text_like_a_log(megabytes, seed)
    seconds: dict[str, list[float]] = {name: [] for name in CONTESTANTS}
    sizes = {}
    for _ in range(repeats):
        for name, (run, share) in CONTESTANTS.items():
            part = texts[: max(1, int(len(texts) * share))]
            sizes[name] = sum(len(text.encode()) for text in part) / 1e6
            start = time.process_time()
            run(part)
            seconds[name].append(time.process_time() - start)
    return {name: sizes[name] / sorted(taken)[len(taken) // 2] for name, taken in seconds.items()}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of lines")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--per-kind", type=int, default=40, metavar="N", help="cases of each kind")
    parser.add_argument("--megabytes", type=float, default=20, metavar="N", help="text that the fast contestants get")
    arguments = parser.parse_args()
    cases = list(planted(arguments.seed, arguments.per_kind))
    found = recall(cases)
    damaged = false_positives(arguments.seed)
    report = {
        "cases": len(cases),
        "kinds": len(found),
        "recall": sum(good for good, _ in found.values()) / len(cases),
        "recall_by_kind": {kind: good / total for kind, (good, total) in found.items()},
        "leaks_by_place": dict(Counter(f"{case.kind} in {case.place}" for case in cases if leaks(case))),
        "secret_free_texts": len(list(secret_free(arguments.seed))),
        "false_positives": [redacted for _, redacted in damaged],
        "megabytes_per_second": throughput(arguments.megabytes, arguments.seed),
    }
    if arguments.json:
        print(json.dumps(report))
    else:
        for name, value in report.items():
            print(f"{name}: {json.dumps(value, indent=2, ensure_ascii=False)}")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
