"""Actions by what they do."""

from __future__ import annotations

import subprocess
import sys
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from teacher_replay.actions import bash, call, labelled, on_texts

from composer_replication.teacher_replay.agreement.action import ActionComparer
from composer_replication.teacher_replay.agreement.comparison import Comparison, ExactComparer

COMPARER = on_texts(ActionComparer())


TODO = call("TodoWrite", todos=[{"content": "write the tests", "status": "pending", "activeForm": "Writing"}])
PIECES = st.sampled_from(
    [
        *("[TOOL_USE] name=Bash input=", "[TOOL_USE] name=Edit input=", "[TOOL_USE] name=apply_patch input=", "\n"),
        *(" ", '{"command": "', '"}', '{"file_path": "a.py", "old_string": "', '", "new_string": "'),
        *("*** Begin Patch\n", "*** Update File: a.py\n", "*** End Patch", "@@ x\n", "-a\n", "+b\n"),
        *("cat <<'EOF'\\n", "EOF", "$(", ")", "`", "'", '\\"', "\\\\", "|", "&&", "||", ";", "&"),
        *("for f in a b; do ", "; done", "if true; then ", "; fi", "{", "}", "{a,b}", "(", "[", "]", "<", ">"),
        *("2>&1", "*", "~", "#", "$x", "${x}", "x=1", "cd ", "find . -name ", "-exec ", "grep -e ", "sed -n '1,5p' "),
        *("sed -i s/a/b/ ", "git ", "python -c ", "-", "--", "-n", "--x=", "1", "-5", "\x00", "\\ud800", "é", "`a`"),
        *("```", "**", "since ", "so ", "not ", "1,000", "12%", "?", "could you ", "npx ", "xargs ", "tar ", "kill "),
    ]
)
ODD_VALUES = st.sampled_from(
    [
        *(None, True, 0, -1, 1.5, 10**20, "", "a", "1", "true", "[1, 2]", "a\nb", "\0", "\ud800", [], [1], [None], {}),
        *({"a": [None]}, ["ls", "-l"], [["x"]], [{"old_string": "x"}], [{"old_string": "x", "new_string": 1}], [5, -1]),
        *({"command": ["ls"]}, {"command": None}, [{"content": "x", "status": []}], {"": {"": ""}}),
    ]
)
KEYS = st.sampled_from(
    [
        *("command", "cmd", "file_path", "path", "old_string", "new_string", "edits", "pattern", "offset", "limit"),
        *("view_range", "glob", "content", "code", "input", "todos", "url", "prompt", "query", "replacement_text"),
        *("start_line", "end_line", "action", "-A", "type"),
    ]
)
TOOLS = st.sampled_from(
    ["Bash", "shell", "Read", "Edit", "MultiEdit", "Write", "Grep", "Glob", "TodoWrite", "WebFetch", "edit", "f"]
)


def edit(path: str, old: str, new: str, **more: Any) -> str:
    return call("Edit", file_path=path, old_string=old, new_string=new, **more)


def read(path: str, **more: Any) -> str:
    return call("Read", file_path=path, **more)


def grep(pattern: str, **more: Any) -> str:
    return call("Grep", pattern=pattern, **more)


def task(prompt: str) -> str:
    return call("Task", prompt=prompt, subagent_type="Explore")


def patch(*lines: str) -> str:
    return "\n".join(["[TOOL_USE] name=apply_patch input=*** Begin Patch", *lines, "*** End Patch"])


def write(path: str, content: str) -> str:
    return call("Write", file_path=path, content=content)


SAME = {
    "prose beside a call": (
        f"Let me look.\n{read('a')}",
        f"[THINKING]\nhm\n[/THINKING]\nI will not change it.\n{read('a')}",
    ),
    "key order": (
        '[TOOL_USE] name=f input={"a": 1, "b": {"c": 2, "d": 3}}',
        '[TOOL_USE] name=f input={"b":{"d":3,"c":2},"a":1}',
    ),
    "numbers as text": (call("f", n=5, on=True, x=2.0), call("f", n="5", on="true", x=2)),
    "null is absent": (call("f", a=1, b=None), call("f", a=1)),
    "empty is absent": (call("f", a=1, b={}, c=[]), call("f", a=1)),
    "what the reader is told": (bash("ls", description="List", timeout=5), bash("ls", description="Look around")),
    "what a sub-agent's task is called": (
        call("Task", prompt="Find the router", description="Router"),
        call("Agent", prompt="Find the router", description="Look it up", subagent_type="general-purpose"),
    ),
    "read from the start": (read("a", offset=1, limit=2000), read("./a")),
    "read by range": (
        call("str_replace_editor", command="view", path="/a", view_range=[5, 9]),
        read("/a", offset=5, limit=5),
    ),
    "read by cat": (bash("cat a.py b.py"), f"{read('b.py')}\n{read('a.py')}"),
    "read by sed": (bash("sed -n '10,20p' a.py"), read("a.py", offset=10, limit=11)),
    "read by head": (bash("head -50 a.py"), read("a.py", limit=50)),
    "numbered lines": (bash("nl -ba a.py | sed -n '5,9p'"), read("a.py", offset=5, limit=5)),
    "search": (bash("grep -rn foo src"), grep("foo", path="src", output_mode="content")),
    "search for files that match": (bash("grep -rl foo src"), grep("foo", path="src/")),
    "search in files of a type": (grep("x", type="py"), grep("x", glob="**/*.py")),
    "search with context": (
        grep("x", output_mode="content", **{"-C": 2}),
        grep("x", output_mode="content", **{"-A": 2, "-B": 2}),
    ),
    "search in one file": (call("search_file", search_term="a.b", file="x.py"), bash("grep -n 'a\\.b' x.py")),
    "files by name": (bash("find src -name '*.py' -type f"), call("Glob", pattern="**/*.py", path="src")),
    "files by brace": (call("Glob", pattern="*.{ts,js}"), call("Glob", pattern="./*.{js,ts}")),
    "a file by its name": (call("find_file", file_name="urls.py", dir="shop"), bash("find shop -name urls.py")),
    "a folder": (bash("ls src"), call("LS", path="src/")),
    "write by echo": (bash("echo 'hi' > a.txt"), call("Write", file_path="a.txt", content="hi")),
    "write by here-document": (
        bash("cat > a.txt <<'EOF'\n$x\nEOF"),
        call("Write", file_path="./a.txt", content="$x\n"),
    ),
    "write by patch": (
        patch("*** Add File: a.txt", "+x", "+y"),
        call("str_replace_editor", command="create", path="a.txt", file_text="x\ny\n"),
    ),
    "write in other words": (
        call("Write", file_path="a.py", content='x = "a"  # name by default\n'),
        call("Write", file_path="a.py", content="x = 'a'  # the default name\n"),
    ),
    "append": (call("execute_ipython_cell", code="append_file('/w/a.md', 'x')"), bash("echo x >> /w/a.md")),
    "delete": (bash("rm old.py"), patch("*** Delete File: old.py")),
    "move": (bash("mv a.py b/"), patch("*** Update File: a.py", "*** Move to: b/a.py")),
    "edit by sed": (bash("sed -i 's/CC = gcc/CC = clang/' mk"), edit("mk", "CC = gcc", "CC = clang")),
    "edit by patch": (
        patch("*** Update File: a.py", "@@ def f():", " x = 0", "-y = 1", "+y = 2"),
        edit("a.py", "y = 1", "y = 2", replace_all=False),
    ),
    "edit by diff": (
        bash("git apply <<'EOF'\n--- a/x.py\n+++ b/x.py\n@@ -1 +1 @@\n-a = 1\n+a = 2\nEOF"),
        edit("x.py", "a = 1", "a = 2"),
    ),
    "edit by editor": (
        call("str_replace_editor", command="str_replace", path="/a", old_str="x", new_str="y"),
        edit("/a", "x", "y"),
    ),
    "edit by function": (
        call("execute_ipython_cell", code="edit_file_by_replace('/a', new_content='y', to_replace='x')"),
        edit("/a", "x", "y"),
    ),
    "edits of two files": (
        f"{edit('a', 'x', 'y')}\n{edit('b', 'x', 'y')}",
        f"{edit('b', 'x', 'y')}\n{edit('a', 'x', 'y')}",
    ),
    "read where it stands": (bash("cd /r && cat a"), read("/r/a")),
    "a list of edits": (
        call(
            "MultiEdit",
            file_path="a",
            edits=[{"old_string": "x", "new_string": "y"}, {"old_string": "p", "new_string": "q"}],
        ),
        f"{edit('a', 'p', 'q')}\n{edit('a', 'x', 'y')}",
    ),
    "JSON in a text": (call("f", body_json='{"a": 1, "b": [2]}'), call("f", body_json='{"b":[2],\n "a":1}')),
    "what hardly fails": (bash("mkdir -p a; cp b a"), bash("mkdir -p a && cp b a  # a copy")),
    "shell tools": (
        call("shell", command=["bash", "-lc", "ls -l a"]),
        call("exec_command", cmd="ls -l ./a", yield_time_ms=5),
    ),
    "where it runs": (call("shell_command", command="make", workdir="/r/"), bash("cd /r && make")),
    "a patch through a shell": (
        call("shell", command=["apply_patch", "*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"]),
        patch("*** Update File: a", "@@", "-x", "+y"),
    ),
    "a patch as text and as an argument": (
        call("apply_patch", patch="*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"),
        call("apply_patch", input="*** Begin Patch\n*** Update File: ./a\n@@\n-x\n+y\n*** End Patch\n"),
    ),
    "a patch as an argument and in a command": (
        call("apply_patch", input="*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"),
        bash("apply_patch <<'EOF'\n*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch\nEOF"),
    ),
    "a patch as an argument and as an edit": (
        call("apply_patch", input="*** Begin Patch\n*** Update File: a\n@@\n-x\n+y\n*** End Patch"),
        edit("a", "x", "y"),
    ),
    "in the background": (bash("python app.py", run_in_background=True), bash("python app.py &")),
    "several calls or one": (f"{bash('git add a')}\n{bash('git commit -m x')}", bash("git add a && git commit -m x")),
    "looking in another order": (
        f"{read('a')}\n{grep('x')}\n{bash('git status')}",
        f"{bash('git status')}\n{read('a')}\n{grep('x')}",
    ),
    "checks in another order": (
        f"{bash('npm test')}\n{bash('npx eslint src')}",
        f"{bash('npx eslint src')}\n{bash('npm test')}",
    ),
    "notes beside work": (f"{TODO}\n{edit('a', 'x', 'y')}", f"{edit('a', 'x', 'y')}\n{TODO}"),
    "sub-agents side by side": (
        f"{task('Find the router')}\n{task('Count the tests')}",
        f"{task('Count the tests')}\n{task('Find the router')}",
    ),
    "a notebook's shell": (call("execute_ipython_cell", code="!pip install x"), bash("pip install x")),
    "a notebook's code": (
        call("execute_ipython_cell", code="# look\nf(a='x', b=2)\n"),
        call("execute_ipython_cell", code='f(\n  b=2,\n  a="x",\n)'),
    ),
    "a notebook's cell": (
        call("NotebookEdit", notebook_path="a.ipynb", cell_id="1", new_source="x = 'a'"),
        call("NotebookEdit", notebook_path="./a.ipynb", cell_id="1", new_source='x = "a"\n', edit_mode="replace"),
    ),
    "a page": (
        call("WebFetch", url="https://A.test/x/?b=2&a=1#top", prompt="What is the default timeout?"),
        call("WebFetch", url="https://a.test/x?a=1&b=2", prompt="Which timeout is the default?"),
    ),
    "tasks in other words": (
        call("update_plan", plan=[{"step": "Write tests", "status": "pending"}], explanation="x"),
        call("update_plan", plan=[{"step": "Add tests", "status": "pending"}]),
    ),
    "a header that stands in the text": (
        patch("*** Update File: a.py", "@@ class A:", "@@ def f(self):", "-    return 1", "+    return 2"),
        edit("a.py", "class A:\n  def f(self):\n    return 1", "class A:\n  def f(self):\n    return 2"),
    ),
    "a file's closing newline": (call("save", path="a", text="x\n"), call("save", path="a", text="x")),
    "a search from its start": (grep("x", offset=0), grep("x")),
    "broken in the same way": ('[TOOL_USE] name=f input={"a": "b', '[TOOL_USE] name=f input={ "a":"b'),
    "a statement": (
        "[TOOL_USE] name=sql input=SELECT a FROM t WHERE b = 1;",
        "[TOOL_USE] name=sql input=select a\nfrom t where b=1",
    ),
}
DIFFERENT = {
    "other JSON in a text": (call("f", body_json='{"a": 1}'), call("f", body_json='{"a": "1"}')),
    "a JSON file laid out anew": (write("a.json", '{"a":1}'), write("a.json", '{"a": 1}')),
    "what may fail": (bash("mkdir a; cp b a"), bash("mkdir a && cp b a")),
    "said and done": ("I'll read `a`.", read("a")),
    "another tool": (call("open", a=1), call("close", a=1)),
    "another argument": (call("f", a=1), call("f", a=2)),
    "the order of a list": (call("f", a=[1, 2]), call("f", a=[2, 1])),
    "given or not": (call("list", path="a", recursive=False), call("list", path="a")),
    "versions are text": (call("f", v="1.10"), call("f", v="1.1")),
    "a description that is the content": (
        call("ticket", title="a", description="It crashes"),
        call("ticket", title="a", description="It is slow"),
    ),
    "a time that is the point": (call("wait_for", timeout=5), call("wait_for", timeout=50)),
    "a time that is set": (call("put_service", service="a", timeout=30), call("put_service", service="a", timeout=300)),
    "a time that is set for a page": (
        call("update_check", url="http://a.test", timeout="30"),
        call("update_check", url="http://a.test", timeout="300"),
    ),
    "a time further inside": (call("f", code="x", a={"timeout": 30}), call("f", code="x", a={"timeout": 300})),
    "a description further inside": (
        call("mcp__jira__create_issue", fields={"summary": "x", "description": "Server down"}),
        call("mcp__jira__create_issue", fields={"summary": "x", "description": "Add dark mode"}),
    ),
    "a key pressed": (
        call("write_stdin", session_id=1, chars="y\n"),
        call("write_stdin", session_id=1, chars="y"),
    ),
    "only a key pressed": (
        call("write_stdin", session_id=1, chars="\n"),
        call("write_stdin", session_id=1, chars=""),
    ),
    "text that is no file's": (call("type", text="y\n"), call("type", text="y")),
    "a place in an application": (
        call("browser_navigate", url="http://localhost:3000/#/login"),
        call("browser_navigate", url="http://localhost:3000/#/admin"),
    ),
    "text that begins with an address": (
        call("post", text="https://a.test is down #alpha"),
        call("post", text="https://a.test is down #beta"),
    ),
    "a later part of what is found": (grep("x", offset=100), grep("x")),
    "another class": (
        patch("*** Update File: a.py", "@@ class A:", "@@ def f(self):", "-    return 1", "+    return 2"),
        patch("*** Update File: a.py", "@@ class B:", "@@ def f(self):", "-    return 1", "+    return 2"),
    ),
    "broken, another path": (
        '[TOOL_USE] name=Bash input={"command": "rm -rf /tmp/a',
        '[TOOL_USE] name=Bash input={"command": "rm -rf / tmp/a',
    ),
    "broken by its quotes": (
        '[TOOL_USE] name=Bash input={"command": "sh -c "rm -rf /tmp/a""}',
        '[TOOL_USE] name=Bash input={"command": "sh -c "rm -rf / tmp/a""}',
    ),
    "raw, quoted": ('[TOOL_USE] name=run input=echo "a  b"', '[TOOL_USE] name=run input=echo "a b"'),
    "raw, another line": ("[TOOL_USE] name=run input=cd a\nls", "[TOOL_USE] name=run input=cd a ls"),
    "a statement in a string": (
        write("p.py", 'db.execute(\n    """\n    SELECT id, name FROM users WHERE active\n    """\n)\n'),
        write("p.py", 'db.execute(\n    """\n    SELECT id, name FROM orders WHERE active\n    """\n)\n'),
    ),
    "a prompt in a string": (
        write("p.py", 'PROMPT = (\n    """\nYou are a strict reviewer of code.\n"""\n)\n'),
        write("p.py", 'PROMPT = (\n    """\nYou are a lenient reviewer of code.\n"""\n)\n'),
    ),
    "a string that is changed": (
        edit("p.py", '"""\nold\n"""', '"""\nSELECT id, name FROM users WHERE active\n"""'),
        edit("p.py", '"""\nold\n"""', '"""\nSELECT id, name FROM orders WHERE active\n"""'),
    ),
    "what it is built for": (
        write("a.go", "//go:build linux\n\npackage a\n"),
        write("a.go", "//go:build windows\n\npackage a\n"),
    ),
    "a hash in a value": (write(".env", "PW=ab#c secret alpha\n"), write(".env", "PW=ab#c secret beta\n")),
    "slashes in a text": (
        write("a.tsx", "<p>see //docs for the beta version</p>\n"),
        write("a.tsx", "<p>see //docs for the alpha version</p>\n"),
    ),
    "another range": (read("a", offset=10), read("a", offset=20)),
    "one file more": (f"{read('a')}\n{read('b')}", read("a")),
    "each once": (f"{read('a')}\n{read('a')}", f"{read('a')}\n{read('b')}"),
    "before and after a change": (f"{read('a')}\n{edit('a', 'x', 'y')}", f"{edit('a', 'x', 'y')}\n{read('a')}"),
    "test, then edit": (f"{bash('pytest')}\n{edit('a', 'x', 'y')}", f"{edit('a', 'x', 'y')}\n{bash('pytest')}"),
    "edits that build on each other": (
        f"{edit('a', 'x', 'y')}\n{edit('a', 'y', 'z')}",
        f"{edit('a', 'y', 'z')}\n{edit('a', 'x', 'y')}",
    ),
    "up and down": (
        f"{bash('docker compose up')}\n{bash('docker compose down')}",
        f"{bash('docker compose down')}\n{bash('docker compose up')}",
    ),
    "everywhere": (edit("a", "x", "y"), edit("a", "x", "y", replace_all=True)),
    "another file": (edit("a", "x", "y"), edit("b", "x", "y")),
    "a comment or none": (
        call("Write", file_path="a.py", content="x=1  # y"),
        call("Write", file_path="a.py", content="x=1"),
    ),
    "whatever the case": (grep("a"), grep("a", **{"-i": True})),
    "one level or all": (call("Glob", pattern="*.py"), call("Glob", pattern="**/*.py")),
    "permissions": (bash("ls"), bash("ls", with_escalated_permissions=True)),
    "foreground": (bash("cat a", run_in_background=True), bash("cat a")),
    "words or a shell's": (call("shell", command=["echo", "$HOME"]), bash("echo $HOME")),
    "broken and whole": ('[TOOL_USE] name=f input={"a": "b', call("f", a="b")),
    "a line further": (
        call("edit", replacement_text="x", start_line=3, end_line=3),
        call("edit", replacement_text="x", start_line=4, end_line=4),
    ),
    "appended or written": (bash("echo x >> a"), call("Write", file_path="a", content="x")),
    "filled in or not": (bash("cat > a <<EOF\n$x\nEOF"), call("Write", file_path="a", content="$x\n")),
}


@pytest.mark.parametrize("case", SAME)
def test_same(case: str) -> None:
    first, second = SAME[case]
    assert COMPARER(first, second).same
    assert COMPARER(second, first) == COMPARER(first, second)


@pytest.mark.parametrize("case", DIFFERENT)
def test_different(case: str) -> None:
    first, second = DIFFERENT[case]
    assert not COMPARER(first, second).same
    assert COMPARER(second, first) == COMPARER(first, second)


@pytest.mark.parametrize("half", ["dev", "test"])
def test_the_labelled_pairs(half: str) -> None:
    rows = labelled(half)
    said_same = [row for row in rows if COMPARER(row["first"], row["second"]).same]
    right = sum(row["same"] for row in said_same)
    assert right / len(said_same) >= 0.98
    assert right / sum(row["same"] for row in rows) >= 0.9


def test_the_labelled_pairs_need_more_than_equal_text() -> None:
    rows = [row for row in labelled("test") if row["same"]]
    assert sum(on_texts(ExactComparer())(row["first"], row["second"]).same for row in rows) < 0.1 * len(rows)


@pytest.mark.parametrize("half", ["dev", "test"])
def test_the_order_of_two_actions_does_not_matter(half: str) -> None:
    for row in labelled(half):
        assert COMPARER(row["first"], row["second"]) == COMPARER(row["second"], row["first"])
        assert COMPARER(row["first"], row["first"]) == Comparison(True, 1.0)


def test_similarity() -> None:
    assert COMPARER(read("a"), f"Hm.\n{read('./a')}") == Comparison(True, 1.0)
    assert COMPARER("I'll read it.", read("a")) == Comparison(False, 0.0)
    near, far = COMPARER(read("src/app.py"), read("src/apps.py")), COMPARER(read("src/app.py"), bash("make -j4 all"))
    assert 1 > near.similarity > far.similarity > 0
    worded = COMPARER(
        call("finish", message="All 12 tests pass and the parser is fixed."),
        call("finish", message="The parser is fixed, and all 12 tests pass now."),
    )
    assert worded.same
    assert 0.65 <= worded.similarity <= 1


def test_what_is_different_is_never_wholly_alike() -> None:
    long = "word " * 10_000
    assert COMPARER(f"{long} one", f"{long} two") == Comparison(False, 0.99)
    assert COMPARER(bash(f"echo {long} one"), bash(f"echo {long} two")) == Comparison(False, 0.99)


def test_what_another_thread_forgets_is_still_compared() -> None:
    class Forgetful(dict[str, Any]):
        def __setitem__(self, key: str, value: object) -> None:
            pass

    comparer = ActionComparer()
    comparer._known = Forgetful()
    assert on_texts(comparer)(bash("ls"), bash("ls -1")).same


def test_importing_the_package_does_not_load_rapidfuzz() -> None:
    names = "composer_replication.teacher_replay.pairs, composer_replication.teacher_replay.agreement.votes"
    code = f"import sys, {names}; assert not {{'rapidfuzz', 'torch', 'pyarrow'}} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)


# Whatever a model writes.


@settings(max_examples=300)
@given(st.lists(PIECES, max_size=12).map("".join), st.lists(PIECES, max_size=12).map("".join))
def test_any_text_can_be_compared(first: str, second: str) -> None:
    found = COMPARER(first, second)
    assert 0 <= found.similarity <= 1
    assert found == COMPARER(second, first)
    assert COMPARER(first, first) == Comparison(True, 1.0)


@settings(max_examples=200)
@given(st.text(st.characters(exclude_categories=()), max_size=60))
def test_any_command_and_any_arguments_can_be_compared(text: str) -> None:
    for first in (bash(text), call("Edit", file_path=text, old_string=text, new_string="x"), grep(text), text):
        for second in (bash(f"{text} "), call("Glob", pattern=text), call("f", query=text, path=text), f"{text}."):
            assert COMPARER(first, second) == COMPARER(second, first)


@settings(max_examples=300)
@given(TOOLS, st.dictionaries(KEYS, ODD_VALUES, max_size=4), TOOLS, st.dictionaries(KEYS, ODD_VALUES, max_size=4))
def test_arguments_of_any_shape_can_be_compared(
    first: str, arguments: dict[str, Any], second: str, others: dict[str, Any]
) -> None:
    one, other = call(first, **arguments), call(second, **others)
    assert COMPARER(one, other) == COMPARER(other, one)
    assert COMPARER(one, one) == Comparison(True, 1.0)


def test_huge_answers_are_compared() -> None:
    text = "word another " * 150_000
    for first, second in (
        (text, text[::-1]),
        (bash(text), bash(f"{text}x")),
        (edit("a.py", text, "x"), edit("a.py", text, "y")),
    ):
        assert not COMPARER(first, second).same
        assert COMPARER(first, first).same
