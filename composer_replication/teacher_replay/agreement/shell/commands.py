"""The options of known commands and their meanings: one table, to be read and extended.

An entry begins with the names of commands and, after the colon, what is true of them (see `Command`). Below are their
options: the spellings of one are joined by "/" and the first stands for all; a final "=" says that it takes a value.
Options after "shown" change how much is printed, or how, but neither what is done nor what is asked. "default" gives
values that go without saying.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache

TABLE = """
# Files.
cat, less, more, bat: reads bound each
  shown -n/--number -b -A -v -e -E -s -R -N -F -X -S -p/--plain
nl: reads bound each
  shown -b/--body-numbering= -w/--number-width= -s=
ls: reads bound here
  -a/--all -A/--almost-all -l -R/--recursive -t -r/--reverse -S -d/--directory -i/--inode shown -1 -F/--classify
  -h/--human-readable --color -G -C -p --group-directories-first -x -m
tree: reads bound here
  -L= -I= -d -a -P= shown -C -n --noreport -F --dirsfirst
rm: bound each
  -r/-R/--recursive -f/--force -d/--dir shown -v/--verbose
mkdir: bound each
  -p/--parents -m/--mode= shown -v/--verbose
touch: bound each
  -c/--no-create -d/--date= -t=
cp, mv: bound
  -r/-R/--recursive -a/--archive -f/--force -n/--no-clobber -p -u/--update shown -v/--verbose
chmod, chown: bound
  -R/--recursive shown -v/--verbose -c/--changes -f
head: reads bound
  -n/--lines= -c/--bytes= shown -q/--quiet/--silent -v/--verbose default -n=10
tail: reads bound
  -n/--lines= -c/--bytes= -f/--follow -F shown -q/--quiet -v/--verbose default -n=10
wc: reads bound any_order
  -l/--lines -w/--words -c/--bytes -m/--chars
diff: reads bound
  -r/--recursive -q/--brief -i -w/--ignore-all-space -b -B -N/--new-file -x/--exclude= shown -u/--unified -U=
  -y/--side-by-side --color -c
du: reads bound here
  -s/--summarize -a/--all -d/--max-depth= -c/--total shown -h/--human-readable -k -m
df: reads bound
  -i/--inodes -T shown -h/--human-readable -k -m
sed: bound
  -n/--quiet/--silent -i/--in-place -E/-r/--regexp-extended -e/--expression= -f/--file=
sort: reads bound
  -n/--numeric-sort -r/--reverse -u/--unique -k/--key= -t/--field-separator= -h/--human-numeric-sort -f -V
uniq: reads bound
xargs: inner words
  -n/--max-args= -I= -0/--null -r/--no-run-if-empty -P/--max-procs= -L= -d=
tee: bound
  -a/--append
jq: reads bound
  -r/--raw-output -c/--compact-output -e -s -n --arg= shown -C -M -S
tar: bound
  -x/--extract/--get -c/--create -t/--list -f/--file= -z/--gzip -j/--bzip2 -J/--xz -C/--directory= --strip-components=
  --exclude= -p shown -v/--verbose
zip: bound
  -r/--recurse-paths -x/--exclude= -j/--junk-paths -9 shown -q/--quiet
rsync: bound
  -a/--archive -z/--compress -r -e= --delete --exclude= -n/--dry-run shown -v/--verbose -P --progress -h -q

# Searching.
grep: reads bound
  -r/-R/--recursive/--dereference-recursive -i/--ignore-case/-y -w/--word-regexp -x/--line-regexp -v/--invert-match
  -E/--extended-regexp -F/--fixed-strings -P/--perl-regexp -G/--basic-regexp -l/--files-with-matches -c/--count
  -L/--files-without-match -o/--only-matching -q/--quiet/--silent -e/--regexp= -f/--file= -m/--max-count=
  -A/--after-context= -B/--before-context= -C/--context= --include= --exclude= --exclude-dir= shown -n/--line-number
  -H/--with-filename -h/--no-filename -s/--no-messages -I --color --colour --null -T -a/--text --heading --no-heading
  -N/--no-line-number --line-buffered --column
rg: reads bound
  -i/--ignore-case -S/--smart-case -w/--word-regexp -x/--line-regexp -v/--invert-match -F/--fixed-strings -P/--pcre2
  -l/--files-with-matches -c/--count -o/--only-matching -q/--quiet -e/--regexp= -m/--max-count= -A/--after-context=
  -B/--before-context= -C/--context= -g/--glob= -t/--type= -T/--type-not= -U/--multiline --files --hidden --no-ignore
  -u -L/--follow --max-depth= shown -n/--line-number -H/--with-filename -I/--no-filename -N/--no-line-number --color=
  --heading --no-heading --column -p/--pretty --sort= --no-messages --line-buffered

# Processes and the machine.
ps: reads bound words
free: reads bound words
  shown -h/--human -m/--mebi -g/--gibi -k
kill: words bound
  -s=
pgrep: reads bound words
  -f/--full -u= shown -a -l
lsof: reads bound words
  -i= -p= -t -n -P
which: reads bound words
  -a
journalctl: reads bound words
  -u/--unit= -n/--lines= -f/--follow -S/--since= -b shown --no-pager -q

# The network.
curl: words any_order
  -X/--request= -d/--data/--data-ascii= --data-raw= --data-binary= --data-urlencode= -H/--header= -o/--output=
  -O/--remote-name -L/--location -I/--head -i/--include -k/--insecure -u/--user= -F/--form= -A/--user-agent=
  -b/--cookie= -c/--cookie-jar= -G/--get -T/--upload-file= -x/--proxy= --json= -w/--write-out= -e/--referer= shown
  -s/--silent -S/--show-error -f/--fail --fail-with-body -v/--verbose -m/--max-time= --connect-timeout= --retry=
  --retry-delay= -#/--progress-bar --no-progress-meter --compressed -N/--no-buffer

# Packages of the system.
apt-get install: any_order words
  --no-install-recommends -f shown -y/--yes/--assume-yes -q/--quiet -qq

# Databases.
psql: words
  -c/--command= -d/--dbname= -h/--host= -p/--port= -U/--username= -f/--file= -t/--tuples-only -A shown -q/--quiet -X
  -P=
sqlite3: long_dash
  shown -header -column -json -line -csv

# Python.
pytest: any_order reads here
  -x/--exitfirst -k= -m= -n/--numprocesses= --lf/--last-failed --ff/--failed-first --co/--collect-only --maxfail=
  --cov= --cov-report= -c= --rootdir= --ignore= --deselect= -p= -o/--override-ini= --timeout= --sw/--stepwise
  --runslow --pdb -W= shown -q/--quiet -v/--verbose -vv -s --capture= --tb= -r= --color= --no-header --no-summary
  --durations= -l/--showlocals --disable-warnings/--disable-pytest-warnings --show-capture= --verbosity=
python: inner
  -V/--version -m= -c= -X= -W= -O -B -I -s -E shown -u -q
mypy: reads any_order
  --strict --config-file= -p/--package= -m= --python-version= shown --pretty --no-error-summary --show-error-codes
  --no-color-output --no-pretty
ruff check: any_order here
  --fix --select= --ignore= --unsafe-fixes --watch --config= shown -q/--quiet -v/--verbose --no-cache -n
  --output-format= --statistics -s/--silent
ruff format: any_order here
  --check --diff shown -q/--quiet -v/--verbose --no-cache -n
black: any_order
  --check --diff -l/--line-length= shown -q/--quiet -v/--verbose --color --no-color
pip install: any_order
  -r/--requirement= -e/--editable= -U/--upgrade --user -c/--constraint= --no-deps --force-reinstall --pre
  -i/--index-url= --extra-index-url= -t/--target= --break-system-packages shown -q/--quiet -v/--verbose
  --disable-pip-version-check --no-cache-dir --progress-bar= --no-input

# JavaScript.
npm install, yarn add, pnpm add: any_order words
  -D/--save-dev/--dev -g/--global -E/--save-exact --frozen-lockfile --legacy-peer-deps --force/-f --production shown
  -S/--save --silent -s --quiet -q --no-audit --no-fund --no-progress --loglevel= --prefer-offline
npm run: words
  --prefix= -w/--workspace= --if-present shown -s/--silent --quiet -q --no-color
tsc:
  -p/--project= -b/--build -w/--watch shown --pretty default -p=tsconfig.json
eslint: any_order
  --fix --ext= -c/--config= --max-warnings= shown --quiet --color --no-color -f/--format=
prettier: any_order
  -w/--write -c/--check -l/--list-different --config= shown --log-level= --loglevel=
jest: any_order
  -t/--testNamePattern= -i/--runInBand -w/--maxWorkers= --watch --ci -u/--updateSnapshot --coverage shown --verbose
  --silent --colors --no-color
node: inner
  -e/--eval= -p/--print= -r/--require= --inspect --test shown --no-warnings

# Other languages.
make: words
  -C/--directory= -f/--file/--makefile= -n/--dry-run/--just-print -B/--always-make -k/--keep-going shown
  -s/--silent/--quiet -j/--jobs= --no-print-directory -w
go test, go vet: long_dash words reads any_order
  -run= -count= -race -cover -bench= -timeout= -short -tags= -coverprofile= shown -v -json
go build: long_dash words
  -o= -race -tags= -ldflags= shown -v -x
go run: long_dash words inner
  -race -tags= shown -v
cargo test: words
  -p/--package= --release/-r --lib --test= --all-features --features= --workspace/--all --no-run --no-fail-fast
  --manifest-path= shown -q/--quiet -v/--verbose --color= -j/--jobs=
cargo build: words
  -p/--package= --release/-r --all-features --features= --workspace/--all --bin= --manifest-path= --target= shown
  -q/--quiet -v/--verbose --color= -j/--jobs=
cargo check: words reads
  -p/--package= --release/-r --all-features --features= --workspace/--all --all-targets shown -q/--quiet -v/--verbose
  --color= -j/--jobs= --message-format=
cargo run: words inner
  -p/--package= --release/-r --bin= --example= --features= shown -q/--quiet -v/--verbose --color=
terraform: long_dash
  -out= -var= -var-file= -target= -auto-approve -destroy shown -no-color -input=
python -m unittest: words
  -f/--failfast -k= shown -v/--verbose -q/--quiet -b/--buffer
gunicorn: words
  -w/--workers= -b/--bind= -k/--worker-class= -c/--config= -D/--daemon --reload -t/--timeout= shown --log-level=
gradle: words
  -x/--exclude-task= -p/--project-dir= --tests= --rerun-tasks shown -q/--quiet -i/--info -d/--debug -s/--stacktrace
  --console= --no-daemon --warning-mode=
rspec: any_order
  -e/--example= -t/--tag= --only-failures --fail-fast shown -f/--format= --color --no-color -b/--backtrace

# Git.
git status: reads
  --ignored shown -s/--short --porcelain -b/--branch --long
git log: reads
  -n/--max-count= -p/--patch/-u --stat --name-only --name-status --all --author= --since/--after= --until/--before=
  --grep= -S= -G= --follow --merges --no-merges --first-parent --reverse -L= shown --oneline --pretty --format --graph
  --decorate --no-decorate --abbrev-commit --color --date=
git diff: reads
  --cached/--staged --stat --name-only --name-status -w/--ignore-all-space -U/--unified= --check --shortstat
  --diff-filter= --numstat shown --color --no-color --no-ext-diff -p/--patch
git show: reads
  --stat --name-only --name-status -s/--no-patch shown --color --pretty --format --no-color -p/--patch
git branch: words
  -a/--all -r/--remotes --list/-l -f/--force -d/--delete -D -m/--move -M --show-current --merged --contains= shown
  --color --no-color -q --no-column
git add: each
  -A/--all/--no-ignore-removal -u/--update -p/--patch -f/--force -N/--intent-to-add shown -v/--verbose
git commit: any_order
  -m/--message= -a/--all --amend --no-edit -F/--file= --no-verify/-n --allow-empty -s/--signoff --fixup= --author=
  shown -q/--quiet -v/--verbose
git checkout:
  -b= -B= -f/--force -t/--track --orphan= -p/--patch --ours --theirs shown -q/--quiet --progress
git restore: each
  -S/--staged -s/--source= -W/--worktree -p/--patch shown -q/--quiet --progress
git reset:
  --hard --soft --mixed --keep -p/--patch shown -q/--quiet
git stash: words
  -m/--message= -u/--include-untracked -a/--all -k/--keep-index -p/--patch shown -q/--quiet
git push: words
  -u/--set-upstream -f/--force --force-with-lease --tags --delete/-d --all -n/--dry-run --no-verify shown -q/--quiet
  -v/--verbose --progress
git pull: words
  -r/--rebase --ff-only --no-rebase --autostash shown -q/--quiet -v/--verbose --progress
git fetch: words
  --all -p/--prune --tags/-t --depth= --unshallow shown -q/--quiet -v/--verbose --progress
git clone:
  --depth= -b/--branch= --recursive/--recurse-submodules --single-branch shown -q/--quiet -v/--verbose --progress
git merge: words
  --no-ff --ff-only --squash --abort --continue --no-commit -m= shown -q/--quiet -v --stat --no-stat
git rev-parse: reads words
  --abbrev-ref --short --show-toplevel --verify shown -q
git grep: reads
  -i/--ignore-case -w -l/--files-with-matches -c/--count -e= -E -F shown -n/--line-number --color

# Containers.
docker run: inner words
  -d/--detach -e/--env= -v/--volume= -p/--publish= --rm --name= -w/--workdir= -u/--user= --network/--net=
  --entrypoint= -i/--interactive -t/--tty --env-file= --mount= --platform= --gpus= shown -q/--quiet
docker exec, docker compose exec, docker compose run: inner words
  -i/--interactive -t/--tty -e/--env= -w/--workdir= -u/--user= -d/--detach
docker build:
  -t/--tag= -f/--file= --build-arg= --no-cache --target= --platform= --pull shown -q/--quiet --progress= default
  -f=Dockerfile
docker ps: reads words
  -a/--all -f/--filter= shown --format= --no-trunc
docker logs: reads words
  -f/--follow -n/--tail= --since= -t/--timestamps
docker compose up: words any_order
  -d/--detach --build --force-recreate --no-deps shown --quiet-pull --no-color
kubectl: words
  -n/--namespace= -l/--selector= -f/--filename= -o/--output= -A/--all-namespaces -c/--container= --context= --tail=
  --since= -p/--previous -w/--watch --force shown --no-headers
"""
# Programs whose first operand is a command of its own, with the options that may stand before it.
_BEFORE = {
    "git": "-C= -c= --git-dir= --work-tree=",
    "npm": "--prefix= -C=",
    "yarn": "--cwd=",
    "pnpm": "-C/--dir= -r/--recursive --filter=",
    "pip": "",
    "docker": "-H/--host= --context=",
    "docker compose": "-f/--file= -p/--project-name= --env-file= --profile=",
    "cargo": "",
    "go": "-C=",
    "apt-get": "-y/--yes/--assume-yes -q -qq",
    "ruff": "",
}


@dataclass(frozen=True)
class Command:
    """The options and traits by which a command's line is read.

    `spellings` maps each option to the one that stands for it; `valued` take a value; `shown` are left out; `defaults`
    go without saying. `traits`: "reads" (it changes nothing, so it may change places with others that read), "bound"
    (the working directory matters only through its operands), "each" (it does one thing per operand), "any_order" (the
    order of operands says nothing), "words" (operands are no paths), "long_dash" (options are words after a single
    dash), "inner" (after its first operand stands another program's line), "here" (without operands, it means the
    working directory).
    """

    spellings: Mapping[str, str] = field(default_factory=dict)
    valued: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    traits: frozenset[str] = frozenset()
    is_known: bool = True

    def has(self, trait: str) -> bool:
        """Whether something is true of the command."""
        return trait in self.traits


UNKNOWN = Command(is_known=False)
"""Any other program: its options are taken as they come, each with the word after it."""


@cache
def commands() -> dict[str, Command]:
    """Every known command, by its name."""
    entries: list[tuple[str, list[str]]] = []
    for line in TABLE.splitlines():
        if line.startswith(" "):
            entries[-1][1].extend(line.split())
        elif line and not line.startswith("#"):
            entries.append((line, []))
    found: dict[str, Command] = {}
    for header, words in entries:
        names, _, traits = header.partition(":")
        found.update(dict.fromkeys(names.split(", "), _command(words, traits)))
    return found


@cache
def subcommands() -> dict[str, Command]:
    """Programs whose first operand is a command of its own, with the options that may stand before it."""
    return {name: _command(options.split()) for name, options in _BEFORE.items()}


def _command(words: list[str], traits: str = "") -> Command:
    spellings: dict[str, str] = {}
    valued: set[str] = set()
    shown: set[str] = set()
    defaults: dict[str, str] = {}
    kind = ""
    for word in words:
        if word in ("shown", "default"):
            kind = word
        elif kind == "default":
            option, _, value = word.partition("=")
            defaults[option] = value
        else:
            first, *others = word.rstrip("=").split("/")
            spellings.update(dict.fromkeys((first, *others), first))
            valued |= {first} if word.endswith("=") else set()
            shown |= {first} if kind == "shown" else set()
    return Command(spellings, frozenset(valued), frozenset(shown), defaults, frozenset(traits.split()))
