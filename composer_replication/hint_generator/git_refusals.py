"""What git and `gh` refuse to do, and what to do about it. What is not listed here is quoted without advice."""

from __future__ import annotations

import re

_UNKNOWN = "Use a name that `git branch -a` or `git log` shows."
_EXISTS = "Use the one that exists, or choose another name."
_HOOK = "Make the checks of the hook pass first."

# Causes before what follows from them. Groups of a pattern may stand in its advice.
_ADVICE = tuple(
    (re.compile(pattern), advice)
    for pattern, advice in (
        (r"not a git repository", "Change into the repository first."),
        (r"dubious ownership", "Allow it with `git config --global --add safe.directory`."),
        (r"index\.lock': File exists", "Wait until the other git process has ended."),
        (r"Permission denied|Authentication failed|could not read (?:Username|Password)|Repository not found", ""),
        (r"unable to auto-detect email|empty ident name", "Set `user.name` and `user.email` first."),
        (r"unmerged files|resolve your current index", "Resolve the unmerged files and `git add` them first."),
        (r"untracked working tree files would be overwritten by \w+:\s+\S+", "Move them away or commit them first."),
        (r"would be overwritten by \w+:\s+\S+|You have unstaged changes", "Commit or stash them first."),
        (r"pull request\b.*\balready exists", "Update that pull request instead of opening another."),
        (r"No commits between \S+ and", "Commit something on the branch and push it first."),
        (r"must first push the current branch", "Push the branch first."),
        (r"files were modified by this hook", "Run the hooks and stage what they change before you commit."),
        (r"\(protected branch hook declined\)", "Push a branch of your own, and open a pull request."),
        (r"\bhook id: |husky - .*\b(?:failed|exited)|pre-(?:commit|push) hook\b.*\b(?:failed|exited)", _HOOK),
        (r"\[rejected\].*\((?:non-fast-forward|fetch first)\)", "Pull or rebase onto the remote branch first."),
        (r"Updates were rejected|Note about fast-forwards", "Pull or rebase onto the remote branch first."),
        (r"\[rejected\].*\(stale info\)", "Fetch before you push with a lease."),
        (r"current branch (?P<name>\S+) has no upstream", "Push with `git push -u origin {name}`."),
        (r"no tracking information", "Name the remote and the branch: `git pull origin BRANCH`."),
        (r"No configured push destination", "Add a remote first, or name one."),
        (r"how to reconcile divergent branches", "Give `--rebase`, `--no-rebase` or `--ff-only`."),
        (r"Not possible to fast-forward", "Rebase or merge instead."),
        (r"You are not currently on a branch", "Check out a branch first, or make one."),
        (r"No such remote|does not appear to be a git repository", "Use a remote that `git remote -v` shows."),
        (r"pathspec '[^'\n]+' did not match", "Use a name that `git ls-files` or `git branch -a` shows."),
        (r"path '[^'\n]+' (?:does not exist|exists on disk, but not) in '", "Use a path that this revision has."),
        (r"unknown revision|bad revision|invalid (?:reference|upstream)|[Nn]ot a valid object name", _UNKNOWN),
        (r"not something we can merge|couldn't find remote ref|src refspec \S+ does not match", _UNKNOWN),
        (r"(?:branch|tag|remote)\b.* already exists|' (?:already exists|is already (?:used|checked))", _EXISTS),
        (r"nothing to commit", "Commit only after a change."),
        (r"(?:no changes|nothing) added to commit", "Stage the changes with `git add` first."),
        (r"ignored by one of your \.gitignore files:\s+\S+", "Leave them out."),
        (r"is not fully merged", "Merge it first, or delete it with `-D` on purpose."),
        (r"[Cc]annot delete branch", "Check out another branch first."),
        (r"patch failed:|corrupt patch", "Make the patch against the file as it stands."),
    )
)  # fmt: skip
_PREFIX = re.compile(r"\A(?:(?:fatal|error|remote|hint): |- )+")


def refusal_in(output: str) -> str | None:
    """The line that says why git refused, without git's own prefix."""
    for pattern, _ in _ADVICE:
        found = pattern.search(output)
        if found is not None:
            start, end = output.rfind("\n", 0, found.start()) + 1, output.find("\n", found.end())
            return _PREFIX.sub("", " ".join(output[start : end if end >= 0 else None].split()))
    return None


def advice_on(line: str) -> str:
    """What to do about a refusal; empty if that is not certain."""
    for pattern, advice in _ADVICE:
        found = pattern.search(line)
        if found is not None:
            return advice.format(**found.groupdict())
    return ""
