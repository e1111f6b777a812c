"""What the options of well-known commands mean: spellings of one option, those that take a value, those about output.

An option's spellings are joined by "/", the first stands for all; a final "=" says that it takes a value. `shown` are
options that change how much is printed, or how, but neither what is done nor what is asked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Command:
    """How a command's line is read.

    `spellings` leads from each option to the one that stands for it; `valued` take a value; `shown` are left out.
    `defaults` are values that go without saying. `reads`: it changes nothing, so it may change places with others
    that read. `bound`: the working directory matters only through its operands. `each`: it does one thing per operand.
    `any_order`: the order of operands says nothing. `paths`: operands are paths. `long_dash`: options are words behind
    a single dash. `inner`: behind its first operand stands another program's line. `here`: without operands, it means
    the working directory.
    """

    spellings: Mapping[str, str] = field(default_factory=dict)
    valued: frozenset[str] = frozenset()
    shown: frozenset[str] = frozenset()
    defaults: Mapping[str, str] = field(default_factory=dict)
    reads: bool = False
    bound: bool = False
    each: bool = False
    any_order: bool = False
    paths: bool = True
    long_dash: bool = False
    inner: bool = False
    here: bool = False
    known: bool = True


def _command(options: str = "", shown: str = "", defaults: Mapping[str, str] | None = None, **traits: bool) -> Command:
    spellings: dict[str, str] = {}
    valued: set[str] = set()
    left_out: set[str] = set()
    for listed, target in ((options, None), (shown, left_out)):
        for entry in listed.split():
            first, *others = entry.rstrip("=").split("/")
            spellings.update(dict.fromkeys((first, *others), first))
            if entry.endswith("="):
                valued.add(first)
            if target is not None:
                target.add(first)
    return Command(spellings, frozenset(valued), frozenset(left_out), dict(defaults or {}), **traits)


UNKNOWN = Command(known=False)
"""Any other program: its options are taken as they come, each with the word behind it."""

_SEARCH_SHOWN = "-n/--line-number -H/--with-filename -h/--no-filename -s/--no-messages -I --color --colour --null -T -a/--text --heading --no-heading -N/--no-line-number --line-buffered --column"  # noqa: E501
_GREP = _command(
    "-r/-R/--recursive/--dereference-recursive -i/--ignore-case/-y -w/--word-regexp -x/--line-regexp -v/--invert-match "
    "-E/--extended-regexp -F/--fixed-strings -P/--perl-regexp -G/--basic-regexp -l/--files-with-matches -c/--count "
    "-L/--files-without-match -o/--only-matching -q/--quiet/--silent -e/--regexp= -f/--file= -m/--max-count= "
    "-A/--after-context= -B/--before-context= -C/--context= --include= --exclude= --exclude-dir=",
    _SEARCH_SHOWN,
    reads=True,
    bound=True,
)
_RG = _command(
    "-i/--ignore-case -S/--smart-case -w/--word-regexp -x/--line-regexp -v/--invert-match -F/--fixed-strings "
    "-P/--pcre2 -l/--files-with-matches -c/--count -o/--only-matching -q/--quiet -e/--regexp= -m/--max-count= "
    "-A/--after-context= -B/--before-context= -C/--context= -g/--glob= -t/--type= -T/--type-not= -U/--multiline "
    "--files --hidden --no-ignore -u -L/--follow --max-depth=",
    "-n/--line-number -H/--with-filename -I/--no-filename -N/--no-line-number --color= --heading --no-heading "
    "--column -p/--pretty --sort= --no-messages --line-buffered",
    reads=True,
    bound=True,
)
_PYTEST = _command(
    "-x/--exitfirst -k= -m= -n/--numprocesses= --lf/--last-failed --ff/--failed-first --co/--collect-only --maxfail= "
    "--cov= --cov-report= -c= --rootdir= --ignore= --deselect= -p= -o/--override-ini= --timeout= --sw/--stepwise "
    "--runslow --pdb",
    "-q/--quiet -v/--verbose -vv -s --capture= --tb= -r= --color= --no-header --no-summary --durations= -l/--showlocals "
    "--disable-warnings/--disable-pytest-warnings -W= --show-capture= --verbosity=",
    any_order=True,
    reads=True,
    here=True,
)
_NODE_INSTALL = _command(
    "-D/--save-dev/--dev -g/--global -E/--save-exact --frozen-lockfile --legacy-peer-deps --force/-f --production",
    "-S/--save --silent -s --quiet -q --no-audit --no-fund --no-progress --loglevel= --prefer-offline",
    any_order=True,
    paths=False,
)
_COMPOSE = "-f/--file= -p/--project-name= --env-file= --profile="

COMMANDS: dict[str, Command] = {
    # Files.
    "cat": _command("", "-n/--number -b -A -v -e -E -s", reads=True, bound=True, each=True),
    "ls": _command(
        "-a/--all -A/--almost-all -l -R/--recursive -t -r/--reverse -S -d/--directory -i/--inode",
        "-1 -F/--classify -h/--human-readable --color -G -C -p --group-directories-first -x -m",
        reads=True,
        bound=True,
        here=True,
    ),
    "tree": _command("-L= -I= -d -a -P=", "-C -n --noreport -F --dirsfirst", reads=True, bound=True, here=True),
    "rm": _command("-r/-R/--recursive -f/--force -d/--dir", "-v/--verbose", bound=True, each=True),
    "rmdir": _command("-p/--parents", "-v/--verbose", bound=True, each=True),
    "mkdir": _command("-p/--parents -m/--mode=", "-v/--verbose", bound=True, each=True),
    "touch": _command("-c/--no-create -d/--date= -t=", bound=True, each=True),
    "cp": _command("-r/-R/--recursive -a/--archive -f/--force -n/--no-clobber -p -u/--update", "-v/--verbose", bound=True),
    "mv": _command("-f/--force -n/--no-clobber -u/--update", "-v/--verbose", bound=True),
    "ln": _command("-s/--symbolic -f/--force -n/--no-dereference", "-v/--verbose", bound=True),
    "chmod": _command("-R/--recursive", "-v/--verbose -c/--changes -f", bound=True),
    "chown": _command("-R/--recursive", "-v/--verbose -c/--changes -f", bound=True),
    "head": _command("-n/--lines= -c/--bytes=", "-q/--quiet/--silent -v/--verbose", {"-n": "10"}, reads=True, bound=True),
    "tail": _command(
        "-n/--lines= -c/--bytes= -f/--follow -F", "-q/--quiet -v/--verbose", {"-n": "10"}, reads=True, bound=True
    ),
    "wc": _command("-l/--lines -w/--words -c/--bytes -m/--chars", reads=True, bound=True, any_order=True),
    "diff": _command(
        "-r/--recursive -q/--brief -i -w/--ignore-all-space -b -B -N/--new-file -x/--exclude=",
        "-u/--unified -U= -y/--side-by-side --color -c",
        reads=True,
        bound=True,
    ),
    "cmp": _command("", "-s", reads=True, bound=True),
    "stat": _command("-c/--format= -f", reads=True, bound=True),
    "file": _command("-b/--brief", reads=True, bound=True),
    "du": _command("-s/--summarize -a/--all -d/--max-depth= -c/--total", "-h/--human-readable -k -m", reads=True, bound=True, here=True),  # noqa: E501
    "df": _command("-i/--inodes -T", "-h/--human-readable -k -m", reads=True, bound=True),
    "sed": _command("-n/--quiet/--silent -i/--in-place -E/-r/--regexp-extended -e/--expression= -f/--file=", bound=True),
    "sort": _command(
        "-n/--numeric-sort -r/--reverse -u/--unique -k/--key= -t/--field-separator= -h/--human-numeric-sort -f -V",
        reads=True,
        bound=True,
    ),
    "uniq": _command("-c/--count -d/--repeated -u/--unique -i", reads=True, bound=True),
    "cut": _command("-d/--delimiter= -f/--fields= -c/--characters= -s", reads=True, bound=True),
    "tr": _command("-d/--delete -s/--squeeze-repeats -c", reads=True, paths=False),
    "xargs": _command("-n/--max-args= -I= -0/--null -r/--no-run-if-empty -P/--max-procs= -L= -d=", inner=True, paths=False),
    "tee": _command("-a/--append", bound=True),
    "jq": _command("-r/--raw-output -c/--compact-output -e -s -n --arg=", "-C -M -S", reads=True, bound=True),
    "md5sum": _command(reads=True, bound=True),
    "sha256sum": _command(reads=True, bound=True),
    "tar": _command(
        "-x/--extract/--get -c/--create -t/--list -f/--file= -z/--gzip -j/--bzip2 -J/--xz -C/--directory= "
        "--strip-components= --exclude= -p",
        "-v/--verbose",
        bound=True,
    ),
    "unzip": _command("-d= -o -l -n -j", "-q -qq", bound=True),
    "zip": _command("-r -x= -j -9", "-q", bound=True),
    "rsync": _command("-a/--archive -z/--compress -r -e= --delete --exclude= -n/--dry-run", "-v/--verbose -P --progress -h -q", bound=True),  # noqa: E501
    # Searching.
    "grep": _GREP,
    "rg": _RG,
    # Processes and the machine.
    "ps": _command(reads=True, bound=True, paths=False),
    "free": _command("", "-h/--human -m/--mebi -g/--gibi -k", reads=True, bound=True, paths=False),
    "kill": _command("-s=", paths=False, bound=True),
    "pkill": _command("-f/--full -9 -u=", paths=False, bound=True),
    "pgrep": _command("-f/--full -u=", "-a -l", paths=False, bound=True, reads=True),
    "lsof": _command("-i= -p= -t -n -P", reads=True, bound=True, paths=False),
    "which": _command("-a", reads=True, bound=True, paths=False),
    "uname": _command("-a/--all -s -r -m", reads=True, bound=True, paths=False),
    "systemctl": _command("--user --now", "--no-pager -q/--quiet -l --full", bound=True, paths=False),
    "journalctl": _command("-u/--unit= -n/--lines= -f/--follow -S/--since= -b", "--no-pager -q", reads=True, bound=True, paths=False),  # noqa: E501
    # Python.
    "pytest": _PYTEST,
    "python": _command("-m= -c= -X= -W= -O -B -I -s -E", "-u -q", inner=True),
    "mypy": _command("--strict --config-file= -p/--package= -m= --python-version=", "--pretty --no-error-summary --show-error-codes --no-color-output --no-pretty", reads=True, any_order=True),  # noqa: E501
    "ruff check": _command("--fix --select= --ignore= --unsafe-fixes --watch --config=", "-q/--quiet -v/--verbose --no-cache -n --output-format= --statistics -s/--silent", any_order=True, here=True),  # noqa: E501
    "ruff format": _command("--check --diff", "-q/--quiet -v/--verbose --no-cache -n", any_order=True, here=True),
    "black": _command("--check --diff -l/--line-length=", "-q/--quiet -v/--verbose --color --no-color", any_order=True),
    "isort": _command("--check/--check-only/-c --diff --profile=", "-q/--quiet -v/--verbose", any_order=True),
    "flake8": _command("--select= --ignore= --max-line-length=", "-q -v --color= --show-source --statistics --count", reads=True, any_order=True),  # noqa: E501
    "pip install": _command(
        "-r/--requirement= -e/--editable= -U/--upgrade --user -c/--constraint= --no-deps --force-reinstall --pre "
        "-i/--index-url= --extra-index-url= -t/--target= --break-system-packages",
        "-q/--quiet -v/--verbose --disable-pip-version-check --no-cache-dir --progress-bar= --no-input",
        any_order=True,
    ),
    "pip uninstall": _command("", "-y/--yes -q/--quiet", any_order=True, paths=False),
    "pip list": _command("--outdated/-o", "--format= --disable-pip-version-check", reads=True, paths=False),
    "coverage": _command("", "-q"),
    "tox": _command("-e= -r/--recreate -p/--parallel=", "-q -v"),
    "uvicorn": _command("--host= --port= --reload --workers= --app-dir=", "--log-level="),
    # JavaScript.
    "npm install": _NODE_INSTALL,
    "npm ci": _command("", "--silent -s --no-audit --no-fund --quiet --no-progress", paths=False),
    "npm run": _command("--prefix= -w/--workspace= --if-present", "-s/--silent --quiet -q --no-color", paths=False, inner=True),
    "yarn add": _NODE_INSTALL,
    "pnpm add": _NODE_INSTALL,
    "tsc": _command("-p/--project= -b/--build -w/--watch", "--pretty"),
    "eslint": _command("--fix --ext= -c/--config= --max-warnings=", "--quiet --color --no-color -f/--format=", any_order=True),
    "prettier": _command("-w/--write -c/--check -l/--list-different --config=", "--log-level= --loglevel=", any_order=True),
    "jest": _command("-t/--testNamePattern= -i/--runInBand -w/--maxWorkers= --watch --ci -u/--updateSnapshot --coverage", "--verbose --silent --colors --no-color", any_order=True),  # noqa: E501
    "vitest": _command("-t/--testNamePattern= --run -u/--update --coverage -w/--watch", "--reporter= --silent --no-color"),
    "node": _command("-e/--eval= -p/--print= -r/--require= --inspect --test", "--no-warnings", inner=True),
    # Other languages.
    "make": _command("-f/--file/--makefile= -n/--dry-run/--just-print -B/--always-make -k/--keep-going", "-s/--silent/--quiet -j/--jobs= --no-print-directory -w", paths=False),  # noqa: E501
    "go test": _command("-run= -count= -race -cover -bench= -timeout= -short -tags= -coverprofile=", "-v -json", long_dash=True, paths=False, reads=True, any_order=True),  # noqa: E501
    "go build": _command("-o= -race -tags= -ldflags=", "-v -x", long_dash=True, paths=False),
    "go vet": _command("", "-v", long_dash=True, paths=False, reads=True, any_order=True),
    "go run": _command("-race -tags=", "-v", long_dash=True, paths=False, inner=True),
    "cargo test": _command("-p/--package= --release/-r --lib --test= --all-features --features= --workspace/--all --no-run --no-fail-fast --manifest-path=", "-q/--quiet -v/--verbose --color= -j/--jobs=", paths=False),  # noqa: E501
    "cargo build": _command("-p/--package= --release/-r --all-features --features= --workspace/--all --bin= --manifest-path= --target=", "-q/--quiet -v/--verbose --color= -j/--jobs=", paths=False),  # noqa: E501
    "cargo check": _command("-p/--package= --release/-r --all-features --features= --workspace/--all --all-targets", "-q/--quiet -v/--verbose --color= -j/--jobs= --message-format=", paths=False, reads=True),  # noqa: E501
    "cargo clippy": _command("-p/--package= --fix --all-features --workspace/--all --all-targets", "-q/--quiet -v/--verbose --color= -j/--jobs= --message-format=", paths=False),  # noqa: E501
    "cargo run": _command("-p/--package= --release/-r --bin= --example= --features=", "-q/--quiet -v/--verbose --color=", paths=False, inner=True),  # noqa: E501
    "cargo fmt": _command("--check --all", "-q/--quiet -v/--verbose", paths=False),
    "mvn": _command("-D= -P= -pl= -f= -am -o/--offline", "-q/--quiet -B/--batch-mode -ntp/--no-transfer-progress -e", paths=False),
    "terraform": _command("-out= -var= -var-file= -target= -auto-approve -destroy", "-no-color -input=", long_dash=True),
    # Git.
    "git status": _command("--ignored", "-s/--short --porcelain -b/--branch --long", reads=True),
    "git log": _command(
        "-n/--max-count= -p/--patch/-u --stat --name-only --name-status --all --author= --since/--after= "
        "--until/--before= --grep= -S= -G= --follow --merges --no-merges --first-parent --reverse -L=",
        "--oneline --pretty --format --graph --decorate --no-decorate --abbrev-commit --color --date=",
        reads=True,
    ),
    "git diff": _command(
        "--cached/--staged --stat --name-only --name-status -w/--ignore-all-space -U/--unified= --check --shortstat "
        "--diff-filter= --numstat",
        "--color --no-color --no-ext-diff -p/--patch",
        reads=True,
    ),
    "git show": _command("--stat --name-only --name-status -s/--no-patch", "--color --pretty --format --no-color -p/--patch", reads=True),
    "git blame": _command("-L= -w", "--color-lines --date= -s", reads=True),
    "git branch": _command("-a/--all -r/--remotes -d/--delete -D -m/--move -M --show-current --merged --contains=", "--color --no-color -q --no-column", paths=False),  # noqa: E501
    "git add": _command("-A/--all/--no-ignore-removal -u/--update -p/--patch -f/--force -N/--intent-to-add", "-v/--verbose", each=True),
    "git rm": _command("-r -f/--force --cached", "-q/--quiet", each=True),
    "git mv": _command("-f/--force", "-v/--verbose"),
    "git commit": _command("-m/--message= -a/--all --amend --no-edit -F/--file= --no-verify/-n --allow-empty -s/--signoff --fixup= --author=", "-q/--quiet -v/--verbose", any_order=True),  # noqa: E501
    "git checkout": _command("-b= -B= -f/--force -t/--track --orphan= -p/--patch --ours --theirs", "-q/--quiet --progress"),
    "git switch": _command("-c/--create= -C/--force-create= -d/--detach -f/--force", "-q/--quiet"),
    "git restore": _command("-S/--staged -s/--source= -W/--worktree -p/--patch", "-q/--quiet --progress", each=True),
    "git reset": _command("--hard --soft --mixed --keep -p/--patch", "-q/--quiet"),
    "git stash": _command("-m/--message= -u/--include-untracked -a/--all -k/--keep-index -p/--patch", "-q/--quiet", paths=False),
    "git push": _command("-u/--set-upstream -f/--force --force-with-lease --tags --delete/-d --all -n/--dry-run --no-verify", "-q/--quiet -v/--verbose --progress", paths=False),  # noqa: E501
    "git pull": _command("-r/--rebase --ff-only --no-rebase --autostash", "-q/--quiet -v/--verbose --progress", paths=False),
    "git fetch": _command("--all -p/--prune --tags/-t --depth= --unshallow", "-q/--quiet -v/--verbose --progress", paths=False),
    "git clone": _command("--depth= -b/--branch= --recursive/--recurse-submodules --single-branch", "-q/--quiet -v/--verbose --progress"),  # noqa: E501
    "git merge": _command("--no-ff --ff-only --squash --abort --continue --no-commit -m=", "-q/--quiet -v --stat --no-stat", paths=False),  # noqa: E501
    "git rebase": _command("-i/--interactive --abort --continue --skip --onto= --autostash", "-q/--quiet -v/--verbose", paths=False),
    "git cherry-pick": _command("-n/--no-commit --abort --continue -x", paths=False),
    "git tag": _command("-a/--annotate -m/--message= -d/--delete -f/--force -l/--list", paths=False),
    "git clean": _command("-f/--force -d -x -X -n/--dry-run", "-q/--quiet"),
    "git rev-parse": _command("--abbrev-ref --short --show-toplevel --verify", "-q", reads=True, paths=False),
    "git ls-files": _command("-m/--modified -o/--others --exclude-standard -d/--deleted -s", reads=True),
    "git grep": _command("-i/--ignore-case -w -l/--files-with-matches -c/--count -e= -E -F", "-n/--line-number --color", reads=True),
    # Containers.
    "docker run": _command(
        "-d/--detach -e/--env= -v/--volume= -p/--publish= --rm --name= -w/--workdir= -u/--user= --network/--net= "
        "--entrypoint= -i/--interactive -t/--tty --env-file= --mount= --platform= --gpus=",
        "-q/--quiet",
        inner=True,
        paths=False,
    ),
    "docker exec": _command("-i/--interactive -t/--tty -e/--env= -w/--workdir= -u/--user= -d/--detach", inner=True, paths=False),
    "docker build": _command("-t/--tag= -f/--file= --build-arg= --no-cache --target= --platform= --pull", "-q/--quiet --progress="),
    "docker ps": _command("-a/--all -f/--filter=", "--format= --no-trunc", reads=True, paths=False),
    "docker logs": _command("-f/--follow -n/--tail= --since= -t/--timestamps", reads=True, paths=False),
    "docker rm": _command("-f/--force -v/--volumes", each=True, paths=False),
    "docker rmi": _command("-f/--force", each=True, paths=False),
    "docker compose up": _command(f"-d/--detach --build --force-recreate --no-deps {_COMPOSE}", "--quiet-pull --no-color", paths=False, any_order=True),  # noqa: E501
    "docker compose down": _command(f"-v/--volumes --remove-orphans --rmi= {_COMPOSE}", paths=False),
    "docker compose logs": _command(f"-f/--follow -n/--tail= -t/--timestamps --since= {_COMPOSE}", "--no-color --no-log-prefix", reads=True, paths=False),  # noqa: E501
    "docker compose ps": _command(f"-a/--all {_COMPOSE}", "--format=", reads=True, paths=False),
    "docker compose exec": _command(f"-T/--no-TTY -e/--env= -u/--user= -w/--workdir= {_COMPOSE}", inner=True, paths=False),
    "docker compose run": _command(f"--rm -T -e/--env= -u/--user= --no-deps {_COMPOSE}", inner=True, paths=False),
    "docker compose build": _command(f"--no-cache --pull {_COMPOSE}", "-q/--quiet --progress=", paths=False, any_order=True),
    "docker compose restart": _command(_COMPOSE, paths=False, any_order=True),
    "kubectl": _command(
        "-n/--namespace= -l/--selector= -f/--filename= -o/--output= -A/--all-namespaces -c/--container= --context= "
        "--tail= --since= -p/--previous -w/--watch --force",
        "--no-headers",
        paths=False,
    ),
    # The network.
    "curl": _command(
        "-X/--request= -d/--data/--data-ascii= --data-raw= --data-binary= --data-urlencode= -H/--header= -o/--output= "
        "-O/--remote-name -L/--location -I/--head -i/--include -k/--insecure -u/--user= -F/--form= -A/--user-agent= "
        "-b/--cookie= -c/--cookie-jar= -G/--get -T/--upload-file= -x/--proxy= --json= -w/--write-out= -e/--referer=",
        "-s/--silent -S/--show-error -f/--fail --fail-with-body -v/--verbose -m/--max-time= --connect-timeout= --retry= "
        "--retry-delay= -#/--progress-bar --no-progress-meter --compressed -N/--no-buffer",
        paths=False,
        any_order=True,
    ),
    "wget": _command("-O/--output-document= -P/--directory-prefix= -c/--continue -r/--recursive --header= --post-data=", "-q/--quiet -nv/--no-verbose -v --show-progress --progress= -T/--timeout= -t/--tries=", paths=False),  # noqa: E501
    "ssh": _command("-p= -i= -o= -l=", "-q -v", inner=True, paths=False),
    # Packages of the system.
    "apt-get install": _command("--no-install-recommends -f", "-y/--yes/--assume-yes -q/--quiet -qq", any_order=True, paths=False),
    "apt-get update": _command("", "-y/--yes/--assume-yes -q/--quiet -qq", paths=False),
    "apt-get remove": _command("--purge", "-y/--yes/--assume-yes -q/--quiet -qq", any_order=True, paths=False),
    "brew install": _command("--cask", "-q/--quiet", any_order=True, paths=False),
    # Databases.
    "psql": _command("-c/--command= -d/--dbname= -h/--host= -p/--port= -U/--username= -f/--file= -t/--tuples-only -A", "-q/--quiet -X -P=", paths=False),  # noqa: E501
    "sqlite3": _command("", "-header -column -json -line -csv", long_dash=True),
    "mysql": _command("-e/--execute= -u/--user= -h/--host= -D/--database= -P/--port= -N -B", "-t/--table", paths=False),
}

SUBCOMMANDS: dict[str, str] = {
    "git": "-C= -c= --git-dir= --work-tree=",
    "npm": "--prefix= -C=",
    "yarn": "--cwd=",
    "pnpm": "-C/--dir= -r/--recursive --filter=",
    "pip": "",
    "docker": "-H/--host= --context=",
    "docker compose": _COMPOSE,
    "cargo": "",
    "go": "-C=",
    "apt-get": "-y/--yes/--assume-yes -q -qq",
    "brew": "",
    "ruff": "",
}
"""Programs whose first operand is a command of its own, with the options that may stand before it."""
