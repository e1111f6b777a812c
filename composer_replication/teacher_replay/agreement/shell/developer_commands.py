"""Options of developers' tools; see `table` for how they are written."""

from __future__ import annotations

TABLE = """
# Python.
pytest: any_order reads here
  -x/--exitfirst -k= -m= -n/--numprocesses= --lf/--last-failed --ff/--failed-first --co/--collect-only
  --maxfail= --cov= --cov-report= -c= --rootdir= --ignore= --deselect= -p= -o/--override-ini= --timeout=
  --sw/--stepwise --runslow --pdb -W=
  shown -q/--quiet -v/--verbose -vv -s --capture= --tb= -r= --color= --no-header --no-summary
  shown --durations= -l/--showlocals --disable-warnings/--disable-pytest-warnings --show-capture=
  shown --verbosity=
python: inner
  -V/--version -m= -c= -X= -W= -O -B -I -s -E
  shown -u -q
mypy: reads any_order
  --strict --config-file= -p/--package= -m= --python-version=
  shown --pretty --no-error-summary --show-error-codes --no-color-output --no-pretty
ruff check: any_order here
  --fix --select= --ignore= --unsafe-fixes --watch --config=
  shown -q/--quiet -v/--verbose --no-cache -n --output-format= --statistics -s/--silent
ruff format: any_order here
  --check --diff
  shown -q/--quiet -v/--verbose --no-cache -n
black: any_order
  --check --diff -l/--line-length=
  shown -q/--quiet -v/--verbose --color --no-color
isort: any_order
  --check/--check-only/-c --diff --profile=
  shown -q/--quiet -v/--verbose
flake8: reads any_order
  --select= --ignore= --max-line-length=
  shown -q -v --color= --show-source --statistics --count
pip install: any_order
  -r/--requirement= -e/--editable= -U/--upgrade --user -c/--constraint= --no-deps --force-reinstall --pre
  -i/--index-url= --extra-index-url= -t/--target= --break-system-packages
  shown -q/--quiet -v/--verbose --disable-pip-version-check --no-cache-dir --progress-bar= --no-input
pip uninstall: any_order words
  shown -y/--yes -q/--quiet
pip list: reads words
  --outdated/-o
  shown --format= --disable-pip-version-check
coverage:
  shown -q
tox:
  -e= -r/--recreate -p/--parallel=
  shown -q -v
uvicorn:
  --host= --port= --reload --workers= --app-dir=
  shown --log-level=

# JavaScript.
npm install: any_order words
  -D/--save-dev/--dev -g/--global -E/--save-exact --frozen-lockfile --legacy-peer-deps --force/-f --production
  shown -S/--save --silent -s --quiet -q --no-audit --no-fund --no-progress --loglevel= --prefer-offline
npm ci: words
  shown --silent -s --no-audit --no-fund --quiet --no-progress
npm run: words
  --prefix= -w/--workspace= --if-present
  shown -s/--silent --quiet -q --no-color
yarn add: any_order words
  -D/--save-dev/--dev -g/--global -E/--save-exact --frozen-lockfile --legacy-peer-deps --force/-f --production
  shown -S/--save --silent -s --quiet -q --no-audit --no-fund --no-progress --loglevel= --prefer-offline
pnpm add: any_order words
  -D/--save-dev/--dev -g/--global -E/--save-exact --frozen-lockfile --legacy-peer-deps --force/-f --production
  shown -S/--save --silent -s --quiet -q --no-audit --no-fund --no-progress --loglevel= --prefer-offline
tsc:
  -p/--project= -b/--build -w/--watch
  shown --pretty
  default -p=tsconfig.json
eslint: any_order
  --fix --ext= -c/--config= --max-warnings=
  shown --quiet --color --no-color -f/--format=
prettier: any_order
  -w/--write -c/--check -l/--list-different --config=
  shown --log-level= --loglevel=
jest: any_order
  -t/--testNamePattern= -i/--runInBand -w/--maxWorkers= --watch --ci -u/--updateSnapshot --coverage
  shown --verbose --silent --colors --no-color
vitest:
  -t/--testNamePattern= --run -u/--update --coverage -w/--watch
  shown --reporter= --silent --no-color
node: inner
  -e/--eval= -p/--print= -r/--require= --inspect --test
  shown --no-warnings

# Other languages.
make: words
  -C/--directory= -f/--file/--makefile= -n/--dry-run/--just-print -B/--always-make -k/--keep-going
  shown -s/--silent/--quiet -j/--jobs= --no-print-directory -w
go test: long_dash words reads any_order
  -run= -count= -race -cover -bench= -timeout= -short -tags= -coverprofile=
  shown -v -json
go build: long_dash words
  -o= -race -tags= -ldflags=
  shown -v -x
go vet: long_dash words reads any_order
  shown -v
go run: long_dash words inner
  -race -tags=
  shown -v
cargo test: words
  -p/--package= --release/-r --lib --test= --all-features --features= --workspace/--all --no-run
  --no-fail-fast --manifest-path=
  shown -q/--quiet -v/--verbose --color= -j/--jobs=
cargo build: words
  -p/--package= --release/-r --all-features --features= --workspace/--all --bin= --manifest-path= --target=
  shown -q/--quiet -v/--verbose --color= -j/--jobs=
cargo check: words reads
  -p/--package= --release/-r --all-features --features= --workspace/--all --all-targets
  shown -q/--quiet -v/--verbose --color= -j/--jobs= --message-format=
cargo clippy: words
  -p/--package= --fix --all-features --workspace/--all --all-targets
  shown -q/--quiet -v/--verbose --color= -j/--jobs= --message-format=
cargo run: words inner
  -p/--package= --release/-r --bin= --example= --features=
  shown -q/--quiet -v/--verbose --color=
cargo fmt: words
  --check --all
  shown -q/--quiet -v/--verbose
mvn: words
  -D= -P= -pl= -f= -am -o/--offline
  shown -q/--quiet -B/--batch-mode -ntp/--no-transfer-progress -e
terraform: long_dash
  -out= -var= -var-file= -target= -auto-approve -destroy
  shown -no-color -input=

python -m unittest: words
  -f/--failfast -k=
  shown -v/--verbose -q/--quiet -b/--buffer
coverage report: words reads
  -m/--show-missing --include= --omit= --fail-under=
coverage run: inner
  -m= -p/--parallel-mode --source= -a/--append
gunicorn: words
  -w/--workers= -b/--bind= -k/--worker-class= -c/--config= -D/--daemon --reload -t/--timeout=
  shown --log-level=
flask run: words
  -p/--port= -h/--host= --debug --reload
celery: words
  -A/--app= -c/--concurrency= -Q/--queues=
  shown -l/--loglevel=
helm: words
  -n/--namespace= -f/--values= --set= --version= --create-namespace
gcc:
  -o= -I= -L= -l= -D= -O= -W= -c -g -E -S
  shown -v
gradle: words
  -x/--exclude-task= -p/--project-dir= --tests= --rerun-tasks
  shown -q/--quiet -i/--info -d/--debug -s/--stacktrace --console= --no-daemon --warning-mode=
rspec: any_order
  -e/--example= -t/--tag= --only-failures --fail-fast
  shown -f/--format= --color --no-color -b/--backtrace
phpunit:
  --filter= --testsuite= -c/--configuration=
  shown --colors --testdox -v/--verbose
dotnet test:
  --filter= -c/--configuration= --no-build
  shown -v/--verbosity= --nologo -l/--logger=
dotnet build:
  -c/--configuration= --no-restore
  shown -v/--verbosity= --nologo
mix test: any_order
  --only= --exclude= --failed --stale
  shown --trace --color
ctest:
  -R/--tests-regex= --test-dir= -E/--exclude-regex=
  shown -V/--verbose -VV/--extra-verbose --output-on-failure -Q/--quiet -j/--parallel=
cmake:
  -S= -B= -G= --build= --target/-t= --config= -D=
  shown -j/--parallel= -v/--verbose
composer install: words
  --no-dev --prefer-dist
  shown -q/--quiet -n/--no-interaction --no-progress -v --no-ansi
bundle install: words
  --path= --without= --deployment
  shown --quiet -j/--jobs=
gh pr create: words
  -t/--title= -b/--body= -d/--draft -B/--base= -H/--head= -f/--fill
gh pr checkout: words
  -R/--repo= -f/--force
gh pr list: words reads
  -R/--repo= -s/--state= -L/--limit= -a/--author=
gh issue view: words reads
  -R/--repo= -c/--comments
gh issue list: words reads
  -R/--repo= -s/--state= -L/--limit= -l/--label=
gh pr view: words reads
  --json= -c/--comments
gh pr diff: words reads
  -R/--repo= --name-only
  shown --color=
gh run view: words reads
  --log --log-failed --job=
deno test:
  -A/--allow-all --filter=
  shown -q/--quiet
bun test:
  -t/--test-name-pattern=
uv pip install: any_order
  -r/--requirement= -e/--editable= -U/--upgrade
  shown -q/--quiet
uv add: words any_order
  --dev --group=
  shown -q/--quiet
poetry add: words any_order
  -G/--group= -D/--dev
  shown -q/--quiet -n/--no-interaction
poetry install: words
  --with= --without= --no-root --sync
  shown -q/--quiet -n/--no-interaction

# Git.
git status: reads
  --ignored
  shown -s/--short --porcelain -b/--branch --long
git log: reads
  -n/--max-count= -p/--patch/-u --stat --name-only --name-status --all --author= --since/--after=
  --until/--before= --grep= -S= -G= --follow --merges --no-merges --first-parent --reverse -L=
  shown --oneline --pretty --format --graph --decorate --no-decorate --abbrev-commit --color --date=
git diff: reads
  --cached/--staged --stat --name-only --name-status -w/--ignore-all-space -U/--unified= --check --shortstat
  --diff-filter= --numstat
  shown --color --no-color --no-ext-diff -p/--patch
git show: reads
  --stat --name-only --name-status -s/--no-patch
  shown --color --pretty --format --no-color -p/--patch
git blame: reads
  -L= -w
  shown --color-lines --date= -s
git branch: words
  -a/--all -r/--remotes --list/-l -f/--force -d/--delete -D -m/--move -M --show-current --merged --contains=
  shown --color --no-color -q --no-column
git add: each
  -A/--all/--no-ignore-removal -u/--update -p/--patch -f/--force -N/--intent-to-add
  shown -v/--verbose
git rm: each
  -r -f/--force --cached
  shown -q/--quiet
git mv:
  -f/--force
  shown -v/--verbose
git commit: any_order
  -m/--message= -a/--all --amend --no-edit -F/--file= --no-verify/-n --allow-empty -s/--signoff --fixup=
  --author=
  shown -q/--quiet -v/--verbose
git checkout:
  -b= -B= -f/--force -t/--track --orphan= -p/--patch --ours --theirs
  shown -q/--quiet --progress
git switch:
  -c/--create= -C/--force-create= -d/--detach -f/--force
  shown -q/--quiet
git restore: each
  -S/--staged -s/--source= -W/--worktree -p/--patch
  shown -q/--quiet --progress
git reset:
  --hard --soft --mixed --keep -p/--patch
  shown -q/--quiet
git stash: words
  -m/--message= -u/--include-untracked -a/--all -k/--keep-index -p/--patch
  shown -q/--quiet
git push: words
  -u/--set-upstream -f/--force --force-with-lease --tags --delete/-d --all -n/--dry-run --no-verify
  shown -q/--quiet -v/--verbose --progress
git pull: words
  -r/--rebase --ff-only --no-rebase --autostash
  shown -q/--quiet -v/--verbose --progress
git fetch: words
  --all -p/--prune --tags/-t --depth= --unshallow
  shown -q/--quiet -v/--verbose --progress
git clone:
  --depth= -b/--branch= --recursive/--recurse-submodules --single-branch
  shown -q/--quiet -v/--verbose --progress
git merge: words
  --no-ff --ff-only --squash --abort --continue --no-commit -m=
  shown -q/--quiet -v --stat --no-stat
git rebase: words
  -i/--interactive --abort --continue --skip --onto= --autostash
  shown -q/--quiet -v/--verbose
git cherry-pick: words
  -n/--no-commit --abort --continue -x
git tag: words
  -a/--annotate -m/--message= -d/--delete -f/--force -l/--list
git clean:
  -f/--force -d -x -X -n/--dry-run
  shown -q/--quiet
git rev-parse: reads words
  --abbrev-ref --short --show-toplevel --verify
  shown -q
git ls-files: reads
  -m/--modified -o/--others --exclude-standard -d/--deleted -s
git grep: reads
  -i/--ignore-case -w -l/--files-with-matches -c/--count -e= -E -F
  shown -n/--line-number --color

# Containers.
docker run: inner words
  -d/--detach -e/--env= -v/--volume= -p/--publish= --rm --name= -w/--workdir= -u/--user= --network/--net=
  --entrypoint= -i/--interactive -t/--tty --env-file= --mount= --platform= --gpus=
  shown -q/--quiet
docker exec: inner words
  -i/--interactive -t/--tty -e/--env= -w/--workdir= -u/--user= -d/--detach
docker build:
  -t/--tag= -f/--file= --build-arg= --no-cache --target= --platform= --pull
  shown -q/--quiet --progress=
  default -f=Dockerfile
docker ps: reads words
  -a/--all -f/--filter=
  shown --format= --no-trunc
docker logs: reads words
  -f/--follow -n/--tail= --since= -t/--timestamps
docker rm: each words
  -f/--force -v/--volumes
docker rmi: each words
  -f/--force
docker compose up: words any_order
  -d/--detach --build --force-recreate --no-deps -f/--file= -p/--project-name= --env-file= --profile=
  shown --quiet-pull --no-color
docker compose down: words
  -v/--volumes --remove-orphans --rmi= -f/--file= -p/--project-name= --env-file= --profile=
docker compose logs: reads words
  -f/--follow -n/--tail= -t/--timestamps --since= -f/--file= -p/--project-name= --env-file= --profile=
  shown --no-color --no-log-prefix
docker compose ps: reads words
  -a/--all -f/--file= -p/--project-name= --env-file= --profile=
  shown --format=
docker compose exec: inner words
  -T/--no-TTY -e/--env= -u/--user= -w/--workdir= -f/--file= -p/--project-name= --env-file= --profile=
docker compose run: inner words
  --rm -T -e/--env= -u/--user= --no-deps -f/--file= -p/--project-name= --env-file= --profile=
docker compose build: words any_order
  --no-cache --pull -f/--file= -p/--project-name= --env-file= --profile=
  shown -q/--quiet --progress=
docker compose restart: words any_order
  -f/--file= -p/--project-name= --env-file= --profile=
kubectl: words
  -n/--namespace= -l/--selector= -f/--filename= -o/--output= -A/--all-namespaces -c/--container= --context=
  --tail= --since= -p/--previous -w/--watch --force
  shown --no-headers
"""
