"""Redaction: what a student does stays byte for byte where it holds no secret."""

from __future__ import annotations

import random
import string

import pytest

from composer_replication.ingestion.redaction import Redactor, redact_trace
from composer_replication.traces import Source, ToolCall, Trace, Turn, render_action

# By what they are; in each, one line is one text.
_NO_SECRETS = {
    "go_tests": r"""
        --- PASS: TestRotatesTheSigningKeyWhenTheOldOneExpired (0.00s)
        --- FAIL: TestRotatesTheSigningKeyWhenTheOldOneExpired (0.01s)
            --- PASS: TestReadsTokensFromAStore/returns_nothing_if_it_is_gone (0.00s)
        token: TestReadsTokensFromAStore_ReturnsNothingIfItIsGone
        key: TestReadsTokensFromAStoreOfManyUsersAndMore2
        go test ./internal/auth -run 'TestToken: TestRefreshesAnExpiredOAuth2TokenOnlyOnceInAWhile'
        "password": "TestOAuth2Callback_RejectsTheWrongStateV2"
        --- PASS: TestOAuth2Callback_RejectsTheWrongState_V2 (0.00s)
        func TestKeyRotation_K8sSecretStore_ReturnsErrNotFound(t *testing.T) {
        {Name: "returns_token_for_oauth2_user", wantToken: "TestOAuth2UserTokenForIntegrationV2"},
    """,
    "branches": r"""
        git checkout -b fix/add-api-key feature/k8s-2fa-login
        git push origin feat/rotate-api-token release/v2b1-rc3
        git worktree add ../wt-client-secret fix/e2e-retry3-flaky
        git branch -m use-auth-token k8s/b2c-login-7d2
        git checkout -b fix/api-key-rotation-2b origin/main
        token: feature/abc-123-some-long-name
        secret = "claude/fix-login-k8s-2b"
        gh pr create --head ci/store-token --base release/2024q3b
        git merge --no-ff feat/password-reset hotfix/x86-64b-build1
        On branch fix/token=refresh-k8s-v2
        git log main..feature/auth-token e2e/main2dev -- src
    """,
    "paths": r"""
        docker compose --env-file tests/e2e/.env up -d
        cat tests/e2e/.env && sed -n 1,40p src/secrets/token_store.go
        secrets: tests/e2e/.env
        grep -n PASSWORD= tests/e2e/.env; rg apiKey: packages/e2e/fixtures/.env.k8s2
        grep -n PASSWORD= out/build-3f2a7c1e9b4d/.env
        API_TOKEN=tests/e2e/.env npm test
        auth = "tests/e2e/.env"
        --auth tests/e2e/.env
        credentials: config/k8s/dev-2b.yaml
        tool --client-key certs/k8s-dev-2024.pem --client-secret deploy/e2e/secret.v2b.json
        API_TOKEN=secrets/e2e/token_v2b.txt ./run
        "token": "src/auth/oauth2callback/token_store2.go"
        PASSWORD=tests/e2e/passwords.v2b.txt
        ls src/secrets/token_store.go:12 internal/keys/k8s_key_store_test.go
        private_key: ~/.ssh/id_ed25519
        apiKey: ./fixtures/e2e/key2a.json
    """,
    "identifiers": r"""
        token_key = "RpcGroupManagementToken"
        ['NSHTTPCookie', 'NSHTTPCookieStorage', 'ASAuthorizationAppleIDButton', 'TKTokenSession']
        _no_split_modules = ["Qwen2OmniToken2WavDiTModel", "Qwen2OmniToken2WavBigVGANModel"]
        credentials = standard_b64encode(credentials).decode()
        withCredentials: kEnumerableProperty
        passwd: HTTPPasswordMgr
        auth: McpOauthTokenEndpointAuth
        DEFINE_CONSTANT(p2p_seq_id_key, "p2p_seq_id")
        sort_key = "created_at_k8s_v2b"
        redis_key = "session:v2b:user:42"
        s3_key = "uploads/2024/img01b.png"
        state_key: "ui.sidebar.v2b"
        i18nKey="errors.e2e.token_expired_2b"
        issue_key: PROJ-12345
        hf_AutoModelForSequenceClassificationOutputs = load()
        cache-key-d41d8cd98f00b204e9800998ecf8427e
        Token: kubernetes-dashboard-token-v2b
        secret: app-k8s-tls-2b
        existingSecret: postgres-ha-pg15-credentials
        claude-sonnet-4-5-20250929 gpt-4o-mini-2024-07-18 Qwen/Qwen2.5-Coder-32B-Instruct-AWQ
        model_token = "Qwen2.5-Coder-32B-Instruct-AWQ"
        @types/react-dom@18.2.7 golang.org/x/oauth2@v0.15.0 tokio-rustls-0.24.1
        ACtionscriptcompilationtargetsettings
        First pass: decided_mask==0, then the rest
        'Test2::Event::Pass' => '1.302103', last_pass_time => '1219328376.07815',
    """,
    "code": r"""
        token = get_token()
        password: str
        apiKey: process.env.API_KEY
        secret_key=hashlib.sha256(session_secret.encode()).hexdigest(),
        key_password=certs[0][2],
        token = base64.b64encode(raw1)[:32]
        barrier_key = f"barrier-{barrier_key[0]}-{barrier_key[1]}"
        api_key = f"{prefix}-key-{index2}"
        token := hex.EncodeToString(sum256[:])
        let token = generate_token_v2(&mut rng_x86);
        const token = await signJwtHS256(payload1, secret2)
        password = user.password_v2_hash[0:16]
        password, err := bcrypt.GenerateFromPassword(raw, bcrypt.DefaultCost)
        Token    string `json:"token_v2,omitempty"`
        let secret: Secret<String> = Secret::from_env("APP_SECRET_V2")?;
        pub api_key: Option<SecretString>,
        (token) => decodeTokenV2FromBase64Url
        export const authToken = atom<string | null>(null)
        API_KEY="${API_KEY:-$(pass show api/k8s-v2)}"
        TOKEN=$(gcloud auth print-access-token) PASSWORD="$(openssl rand -hex 16)"
        secret: ${{ secrets.NPM_TOKEN_V2 }}
        token: {{ .Values.auth.tokenV2 | quote }}
        password: !vault |
        password: "{{ vault_db_password_v2 }}"
        PASSWORD=<your-password-1> TOKEN=<paste-token-2-here>
        secret = var.db_secret_v2b[each.key]
        token: token2 ?? config.auth.tokenV2!,
        secretKeyRef: {name: app-k8s-2b, key: token-v2b}
        if (password.length < 8 || !/[0-9]/.test(password)) throw new Error("weak")
        self.assertEqual(token, "token-for-e2e-v2b")
        password_hash=generate_password_hash("x"),
        os.environ["API_TOKEN"] = str(uuid4())
        password=request.form['password'][:72],
        auth=HTTPBasicAuth(user1, pass2),
        auth = (cfg.user1, cfg.pass2)
        headers={"Authorization": f"Bearer {token_v2}"}
        -H "Authorization: Bearer $(cat /run/e2e/token_v2)"
    """,
    "commands": r"""
        kubectl create secret generic app-secret-v2 --from-env-file=tests/e2e/.env
        gh secret set DEPLOY_TOKEN_V2 --body "$(cat token.txt)" --repo org/app2
        gh auth login --with-token < ~/.gh_token_2
        docker build --secret id=npmrc2,src=.npmrc2 -t app:v2.1 .
        helm upgrade app ./chart --set auth.existingSecret=app-k8s-v2 --set image.tag=v1.2.3-rc4
        terraform apply -var "db_password=$DB_PASSWORD2"
        aws secretsmanager get-secret-value --secret-id prod/app2/db-creds-v3
        aws ssm get-parameter --name /prod/app2/api-key --with-decryption
        openssl rsa -in certs/k8s-key2.pem -passin pass:test1234
        npm run test:e2e -- --grep "token: refreshes-after-401"
        pytest tests/auth/test_tokens.py::TestToken::test_refresh_token_v2[oauth2-pkce] -k "password and not e2e2"
        git commit -m "fix(auth): token=refresh_v2 falls back to k8s-secret"
        curl -H "X-Api-Key: $API_KEY" "http://localhost:8080/api/v2/keys?token=${TOKEN_V2}"
        curl "https://api.io/v1/tokens/refresh_v2b?key=users/e2e/v2"
        sed -i 's/password: .*/password: ${DB_PASSWORD_V2}/' config/k8s/dev.yaml
        export API_KEY=$(op read "op://Dev/app2/api-key")
        PASSWORD_STORE_DIR=/srv/e2e/store2 pass show k8s/db2
        export type AuthToken = Branded<string, 'AuthTokenV2'>
        git+https://oauth2:$CI_JOB_TOKEN@gitlab.com/org/app2.git
        --password-file=tests/e2e/pw2.txt --token-ttl 3600s --secret-engine kv-v2
        --auth-type oauth2-pkce --api-key-header X-API-Key2 --auth-mode k8s2
        mysql -u root -proot2 -h 127.0.0.1 -P 3306 app_e2e2
        curl -u "$USER2:$PASS2" https://a.io -u user2:$(cat tests/e2e/pw2)
        sshpass -f tests/e2e/pw2.txt ssh host2
        redis-cli -a "$REDIS_PASSWORD2" ping
    """,
    "more_code": r"""
        const apiKey = config.get<string>('auth.apiKeyV2') ?? ''
        apiKey: import.meta.env.VITE_API_KEY_V2 as string,
        <input type="password" id="password2" autoComplete="current-password" />
        <PasswordInput name="passwordConfirm2" testID="password-input-v2" />
        token: z.string().min(32).regex(/^[A-Za-z0-9]+$/),
        passwordHash: await argon2.hash(password2),
        expect(token).toBe('mock-token-e2e-v2')
        process.env.JWT_SECRET = 'test-jwt-secret-v2'
        API_KEY: sk-test-key-for-unit-tests
        OPENAI_API_KEY=sk-proj-test-key-for-e2e-tests
        ANTHROPIC_API_KEY=sk-ant-test-key-for-the-unit-tests-2
        secret := []byte("my_hs256_test_secret_key")
        Token: oauth2.Token{AccessToken: "access-v2", Expiry: time.Now()},
        tok, err := oauth2cfg.TokenSource(ctx, tok2).Token()
        type TokenStoreV2 struct { mu sync.RWMutex; tokens map[string]*TokenV2 }
        APIKey: os.Getenv("STRIPE_API_KEY_V2"),
        let api_key = std::env::var("API_KEY_V2").expect("API_KEY_V2");
        let token: JwtToken<Claims2> = decode_token_v2(&raw, &KEYS.decoding)?;
        #[serde(rename = "accessTokenV2")] pub access_token: String,
        token_type = TokenType::Ident2
        Token::new(TokenKind::Number2, "123abc")
        tokenizer = AutoTokenizer.from_pretrained("Qwen/Qwen2.5-0.5B-Instruct", token=hf_token2)
        pad_token="<|endoftext|>", eos_token="<|im_end|>"
        api_key: str = Field(..., alias="apiKeyV2")
        password=make_password("e2e-user-2"),
        @patch("app.auth.get_token_v2", return_value="fake-token-v2")
        monkeypatch.setenv("API_TOKEN", "test-token-v2")
        cookie: session=test-session-2; path=/
        credentials: 'include', mode: 'cors'
        credentials=service_account.Credentials.from_service_account_file("e2e/sa2.json")
        - name: db-k8s-secret-v2
        env: [{name: DB_PASSWORD, valueFrom: {secretKeyRef: {name: db-k8s-v2, key: password2}}}]
        password: ((db-password-v2))
        password: "%kernel.secret_v2%"
        key: ${{ runner.os }}-pnpm-${{ hashFiles('**/pnpm-lock.yaml') }}
        POSTGRES_PASSWORD: postgres2
        JWT_SECRET=super-secret-jwt-token-with-at-least-32-characters-long
        NEXTAUTH_SECRET=development-secret-do-not-use-in-prod-2
        DATABASE_URL=postgres://postgres:postgres@localhost:5432/app_e2e2
        https://x-access-token:${GITHUB_TOKEN2}@github.com/org/app.git
        the password is stored in k8s/secret-v2 and rotated daily
        The token is `refresh_v2` and the secret is in tests/e2e/.env
        [FAIL] password: expected 8chars+1digit
        Error: token: unexpected 'identifier2' at line 12, col 3b
        "accessToken": "string2", "apiKey": "AIzaSy-example"
        {"secretName": "e2e-tls-v2", "tokenPath": "/var/run/e2e/token2"}
        key_id="alias/app2-k8s", kms_key = aws_kms_key.app2.arn
        pass=1, fail=0, skip=2; pass: 12/15 tests2
    """,
    "made_up_passwords": r"""
        {"username": "kim", "password": "Password123!"}
        password="Test1234!"
        password: 'SecurePass123!'
        password = "wrong-password-1"
        POSTGRES_PASSWORD=test_password_123
        DB_PASSWORD=p@ssw0rd
        curl -u admin:admin123 http://localhost:8080
        postgres://app:test_pass@localhost/app
        postgres://shopkeeper:shopkeeper@localhost/shop
    """,
    "hashes_and_ids": r"""
        git show 9fceb02d0ae598e95dc970b74767f19372d61af8
        request_id=3f2a7c1e-9b4d-4e8a-a1c2-5d6e7f8091a2 trace=4bf92f3577b34da6a3ce929d0e0e4736
        "integrity": "sha512-9QzhvKXc2p1sYVfG0Z8mT4uN7bL3eR6wJ5xAqDiCoHkSgFtPyBnMzUvWlErTaKdO1234567890abcdefghij=="
        uses: aws-actions/configure-aws-credentials@e3dd6a429d7300a6a4c196c26e071d42e0343502
        aws-key-rotator: "e3dd6a429d7300a6a4c196c26e071d42e0343502"
        "aws_key_module": "modules/secrets/managed/keys/rotation"
        arn:aws:secretsmanager:us-west-2:123456789012:secret:AppDatabase-a1b2c3
        aws logs tail --starting-token eyJuZXh0IjogMTIzfQ9 && echo credential_source=Ec2InstanceMetadata
        h1:5eQpCjFZQ0kXU2mQWv9g8y7Hn3LbTzRkVYsWJxAqDiC=
        checksum = "0f0a1b2c3d4e5f60718293a4b5c6d7e8f90a1b2c3d4e5f60718293a4b5c6d7e8"
        20240115:TestReadsTheWholeConfigFromTheEnvironment
        ["api_token", "3f2a7c1e9b4d", "client_secret", "9b4d3f2a7c1e"]
        traceparent: 00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01
    """,
    "routes_and_urls": r"""
        app.get("/users/search", listUsers); app.post('/users/bulk', importUsers)
        router.push("/home/feed"); <Link href="/home/news">
        curl -s http://localhost:3000/users/export /home/static/app.css
        git clone https://github.com:org/repo@v1.2 ssh://git@github.com/org/repo
        http://localhost:5173/@vite/client https://unpkg.com/@scope/pkg@1.2.3/dist/a.js
    """,
    "addresses_of_nobody": r"""
        git config user.email "test@test.com" && git config user.name Test
        git commit --author="Claude <claude@anthropic.com>" -m "Fix"
        Co-authored-by: openhands <openhands@all-hands.dev>
        users = ["a@b.com", "foo@bar.com", "bob@example.com"]
    """,
}
_LINES = [
    pytest.param(line.strip(), id=f"{kind}-{number}")
    for kind, text in _NO_SECRETS.items()
    for number, line in enumerate(text.strip().splitlines())
]


def _actions(text: str) -> list[Turn]:
    """The ways in which a student says something."""
    return [
        Turn(role="assistant", content=text, thinking=text),
        Turn(role="assistant", tool_calls=[ToolCall("c1", "Bash", {"command": text})]),
        Turn(role="assistant", tool_calls=[ToolCall("c2", "Edit", {"old_string": f"a\n{text}\n", "new_string": text})]),
        Turn(role="assistant", tool_calls=[ToolCall("c3", "Write", {"content": f"# file\n    {text}\n\n{text}"})]),
        Turn(role="assistant", tool_calls=[ToolCall("c4", "X", raw_arguments=f'{{"a": "x\\n{text}\\n')]),
    ]


# Encoded data, in which anything comes up.
_LINES.append(pytest.param(f"data:font/woff2;base64,{'d09GMgAB' * 12}/EAAA{'oBUAACxQ' * 8}", id="encoded"))


@pytest.mark.parametrize("text", _LINES)
def test_an_action_without_a_secret_stays(text: str) -> None:
    # As a result shows it: with line numbers, in a diff.
    shown = Turn(role="tool", content=f"    12→{text}\n+{text}\n- {text}\n")
    trace = Trace(trace_id="t", turns=[shown, *_actions(text)], source=Source(file="a", format="f"))
    redacted = redact_trace(trace)
    assert [render_action(turn) for turn in trace.turns[1:]] == [render_action(turn) for turn in _actions(text)]
    assert redacted == {}


def _drawn(alphabet: str, length: int) -> str:
    return "".join(random.Random(f"{alphabet} {length}").choices(alphabet, k=length))


_LETTERS_AND_DIGITS = string.ascii_letters + string.digits


@pytest.mark.parametrize(
    "text",
    [
        f"ibm_cloud_api_key = '{_drawn(_LETTERS_AND_DIGITS + '_-', 44)}'",
        f"COS_HMAC_SECRET_ACCESS_KEY={_drawn('0123456789abcdef', 48)}",
        f"cloudant_password: {_drawn('0123456789abcdef', 64)}",
        f'softlayer_api_key = "{_drawn(string.ascii_lowercase + string.digits, 64)}"',
        "-H 'Authorization: Bearer xK_9.Q5r-4.7ZtW'",
        f'oauth_consumer_key="{_drawn(string.ascii_lowercase + string.digits, 16)}"',
        f"redis_key = '{_drawn(_LETTERS_AND_DIGITS, 32)}'",
        f"STRIPE_KEY={_drawn(_LETTERS_AND_DIGITS, 20)}",
        f'["run","--api-key","{_drawn(_LETTERS_AND_DIGITS, 20)}"]',
        f"getenv('API_KEY', '{_drawn(_LETTERS_AND_DIGITS, 20)}')",
        f"HEROKU_API_KEY={'-'.join(_drawn('0123456789abcdef', length) for length in (8, 4, 4, 4, 12))}",
        "HEROKU_API_KEY=eebed942-beef-cafe-dead-facade4ace12",
        "postgres://app:aB3/x9Zq@db/shop",
        f"bot {_drawn(string.digits, 10)}:AA{_drawn(_LETTERS_AND_DIGITS, 33)}",
        f"token: {_drawn(_LETTERS_AND_DIGITS, 40)}",
    ],
)
def test_a_secret_in_an_action_goes(text: str) -> None:
    redactor = Redactor()
    assert redactor.text(f"{text}\n") != f"{text}\n"
    assert redactor.counts.total() == 1


def test_a_word_with_a_number_is_no_secret_elsewhere() -> None:
    turns = [
        Turn(role="tool", content="DB_PASSWORD=stage2\n"),
        Turn(role="assistant", tool_calls=[ToolCall("c", "Bash", {"command": "make stage2"})]),
    ]
    redact_trace(Trace(trace_id="t", turns=turns, source=Source(file="a", format="f")))
    expected = ["DB_PASSWORD=<PASSWORD_1>\n", "make stage2"]
    assert [turns[0].content, turns[1].tool_calls[0].arguments["command"]] == expected
