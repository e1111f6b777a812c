"""Short names and other spellings of commands, put right before their options are read."""

from __future__ import annotations

import re

_SIGNALS = {"HUP": "1", "INT": "2", "QUIT": "3", "KILL": "9", "TERM": "15", "USR1": "10", "USR2": "12", "STOP": "19"}
_SHORT_NAMES = {
    "npm i": "npm install",
    "npm add": "npm install",
    "npm clean-install": "npm ci",
    "npm run-script": "npm run",
    "npm un": "npm uninstall",
    "npm remove": "npm uninstall",
    "npm rm": "npm uninstall",
    "npm list": "npm ls",
    "npm la": "npm ls",
    "pnpm i": "pnpm install",
    "cargo t": "cargo test",
    "cargo b": "cargo build",
    "cargo c": "cargo check",
    "cargo r": "cargo run",
    "docker container": "docker",
    "docker image": "docker",
    "docker images": "docker image ls",
    "git stage": "git add",
    "gradlew": "gradle",
    "./gradlew": "gradle",
    "./mvnw": "mvn",
}
# What npm, yarn and pnpm run by the name of the script alone.
_NPM_SCRIPTS = {"test": "test", "t": "test", "tst": "test", "start": "start", "stop": "stop", "restart": "restart"}
_YARN_OWN = {
    "add", "audit", "cache", "config", "create", "dlx", "exec", "global", "import", "info", "init", "install", "link",
    "list", "login", "node", "outdated", "pack", "publish", "remove", "run", "set", "unlink", "up", "upgrade",
    "version", "versions", "why", "workspace", "workspaces", "i", "rebuild", "prune", "store", "patch",
    "deploy", "fetch", "env",
}  # fmt: skip
_DOCKER_NAMES = {
    "docker container ls": "docker ps",
    "docker container list": "docker ps",
    "docker image list": "docker image ls",
    "docker image rm": "docker rmi",
    "docker image build": "docker build",
    "docker buildx build": "docker build",
}
_TAR_LETTERS = re.compile(r"[A-Za-z]+")


def usual_words(name: str, arguments: list[str]) -> tuple[str, list[str]]:
    """A command's usual name and the arguments that go with it."""
    if name in ("docker container", "docker image", "docker buildx") and arguments:
        whole = f"{name} {arguments[0]}"
        short = f"docker {arguments[0]}" if name == "docker container" else whole
        return _DOCKER_NAMES.get(whole, short), arguments[1:]
    if name == "docker images":
        return "docker image ls", arguments
    program, _, sub = name.partition(" ")
    if program in ("npm", "pnpm") and sub in _NPM_SCRIPTS:
        return f"{program} run", [_NPM_SCRIPTS[sub], *arguments]
    if program == "yarn" and not arguments and not sub:
        return "yarn install", arguments
    if program in ("yarn", "pnpm") and sub and sub not in _YARN_OWN and not sub.startswith("-"):
        return f"{program} run", [sub, *arguments]
    if name in ("ack", "ag"):
        return "rg", arguments
    if name == "git version":
        return "git", ["--version"]
    if name == "npm exec":
        return "npx", [word for word in arguments if word != "--"]
    if name in ("bin/rails", "./bin/rails"):
        return "rails", arguments
    if name == "service" and len(arguments) == 2:
        return "systemctl", [arguments[1], arguments[0]]
    if name == "git checkout" and arguments[:1] == ["--"]:
        return "git restore", arguments[1:]
    if name == "kill":
        return name, _kill_arguments(arguments)
    if name == "tar" and arguments and _TAR_LETTERS.fullmatch(arguments[0]):
        return name, [f"-{arguments[0]}", *arguments[1:]]
    if name == "ps" and arguments and _TAR_LETTERS.fullmatch(arguments[0]):
        return name, [f"-{arguments[0]}", *arguments[1:]]
    if name == "chmod":
        return name, [re.sub(r"^0+(?=[0-7]{3}$)", "", word) for word in arguments]
    if name in ("command", "type") and arguments and (name == "type" or arguments[0] in ("-v", "-V")):
        return "which", [word for word in arguments if not word.startswith("-")]
    if name == "sed":
        # An empty suffix for the copy, as other seds want it.
        return name, [word for word in arguments if word]
    return _SHORT_NAMES.get(name, name), arguments


def _kill_arguments(arguments: list[str]) -> list[str]:
    """Signals by number; 15 is what `kill` sends unless told."""
    words = list(arguments)
    if len(words) > 1 and words[0] == "-s":
        words[:2] = [f"-{words[1]}"]
    if words and (found := re.fullmatch(r"-(?:SIG)?([A-Z0-9]+)", words[0])) is not None:
        number = _SIGNALS.get(found[1], found[1])
        words[:1] = [] if number == "15" else [f"-s{number}"]
    return words
