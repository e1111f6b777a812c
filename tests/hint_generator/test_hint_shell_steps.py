"""Command lines taken apart."""

from __future__ import annotations

import pytest

from composer_replication.hint_generator.shell_steps import steps


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("", ""),
        ("# only a comment", ""),
        ("cd /w && uv run pytest -q 2>&1 | tail -3", "cd &&pytest |tail"),
        ("pytest; echo done", "pytest ;echo"),
        ("pytest\n\n# don't\necho 'a | b; c'", "pytest ;echo"),
        ("npm run dev & sleep 3", "npm ;sleep"),
        ("pytest &> log; cat log 2>&1", "pytest ;cat"),
        ("make \\\n  all |& tail", "make |tail"),
        ("find . -exec cat {} \\; | head", "find |head"),
        ("(cd a && make) 2>&1 | tail", "cd &&make |tail"),
        ('x=$(pytest | tail -1); echo "$x"', "pytest |tail ;echo"),
        ('echo "last: $(pytest | tail -1)"', "echo ;pytest |tail"),
        ("bash -c 'pytest | tail' && ls", "bash ;pytest |tail &&ls"),
        ('ssh -p 22 me@host "docker logs web"', "ssh ;docker"),
        ("python3 - <<'EOF' | head\nprint('; rm | x')\nEOF\necho done", "python3 |head ;echo"),
        ("cat <<EOF > a.sh\npytest | tail\nEOF", "cat"),
        ("sudo -E env A=1 timeout -k 5 60 pytest", "pytest"),
        ("ls | xargs -0 -I {} cat {}", "ls |cat"),
        ("cat a || cat b", "cat? ||cat"),
        ("cd a && ls 2>&1 | head || echo none; pwd", "cd? &&ls? |head? ||echo ;pwd"),
        ("make || true", "make ||true"),
        ("rm a || true; make", "rm? ||true? ;make"),
        ("make || exit 1", "make ||exit"),
        ("rm a; docker rm b; make; rm a; ls", "rm? ;docker? ;make ;rm ;ls"),
        ("if ls a; then pwd; fi", "ls? ;pwd ;fi"),
        ("! grep x a && pwd", "grep? &&pwd"),
        ("until curl x; do sleep 1; done", "curl? ;sleep? ;done?"),
        ("for i in 1 2; do curl x && break; done", "for? ;curl? &&break? ;done?"),
        ("ls | while read f; do cat $f; done", "ls |read ;cat ;done"),
    ],
)
def test_steps(command: str, expected: str) -> None:
    """A step is written as its operator and program, and a question mark if its failure is foreseen."""
    found = [f"{step.operator}{step.words[0]}{'?' if step.foreseen else ''}" for step in steps(command)]
    assert " ".join(found) == expected


def test_the_words_of_a_step() -> None:
    assert steps("cd a; .venv/bin/python -m pytest -q 'a b' | tail")[1].words == ["pytest", "-q", "''"]
