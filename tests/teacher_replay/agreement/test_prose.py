"""Texts that say the same, and texts that look alike and do not."""

from __future__ import annotations

import pytest

from composer_replication.teacher_replay.agreement.comparison import Comparison
from composer_replication.teacher_replay.agreement.prose import likeness
from composer_replication.teacher_replay.agreement.synonyms import stem

SAME = [
    ("No, `a.py` is not safe to delete.", "`a.py` is not safe to delete."),
    ("## Summary\nThe change adds a retry.", "The change adds a retry."),
    ("I changed `a.py` and `b.py`.", "I changed `b.py` and `a.py`."),
    ("I'll fix the bug in `a.py`.", "I will fix the bug in `a.py`."),
    (
        "All 48 tests pass now. The race was in `flush()`, which released the lock too early.",
        "The race condition was caused by `flush()` releasing the lock too early; all 48 tests are passing.",
    ),
    (
        "I couldn't reproduce the failure on Python 3.12. Which version are you running?",
        "The failure does not occur for me with Python 3.12 - what version do you use?",
    ),
    ("The build fails since `libssl-dev` isn't installed.", "`libssl-dev` is missing, which is why the build fails."),
    (
        "I've renamed `get_user` to `fetch_user` in all 6 call sites.",
        "`get_user` is now called `fetch_user`; I updated the 6 call sites.",
    ),
    ("Would you like me to open a pull request?", "Shall I open a PR for this?"),
    (
        "Use `git rebase -i HEAD~3` to squash the last three commits.",
        "You can squash the last 3 commits with `git rebase -i HEAD~3`.",
    ),
    ("I need access to the staging database to continue.", "To go on I need access to the staging database."),
    ("The tests are green, but coverage dropped to 81%.", "Coverage went down to 81%, though the tests pass."),
    (
        "Nothing to do: the dependency is already at 4.2.1.",
        "The dependency is at 4.2.1 already, so there is nothing to do.",
    ),
    (
        "It looks like the token expired. Please log in again.",
        "Your token seems to have expired; please sign in again.",
    ),
    ("What should the default page size be?", "Which default should I use for the page size?"),
    ("I removed the unused imports from `utils.py`.", "The unused imports in `utils.py` are gone."),
    (
        "The function is O(n^2) because of the nested loop over `items`.",
        "The nested loop over `items` makes the function O(n^2).",
    ),
    (
        "To reproduce: start the server, then open /login twice.",
        "Start the server and open /login twice to reproduce it.",
    ),
    ("I can't do that without the API key.", "Without an API key I am not able to do this."),
    ("Let me know if you want the old behaviour back.", "If you want the old behaviour back, tell me."),
    ("Do you want me to add a test for this?", "Should I write a test for it?"),
    (
        "The memory leak comes from the event listeners that are never removed.",
        "Event listeners are never removed, and that is where the memory leak comes from.",
    ),
    ("You need Node 20 or newer to build this project.", "Building this project requires Node 20 or later."),
    ("Set `DEBUG=1` to see the queries.", "You can see the queries by setting `DEBUG=1`."),
    (
        "Everything is up to date, so there is nothing to commit.",
        "There's nothing to commit; everything is up to date.",
    ),
    (
        "The password is stored in plain text. That should be fixed before the release.",
        "Before the release this should be fixed: the password is stored in plain text.",
    ),
    ("Three tests fail: `test_a`, `test_b` and `test_c`.", "`test_a`, `test_b` and `test_c` are failing (3 in total)."),
    ("Which branch should I base this on, `main` or `develop`?", "Should this be based on `develop` or on `main`?"),
    ("The typo in the heading is fixed.", "I fixed the heading's typo."),
    ("Tests: 31 passed, 2 skipped.", "31 tests passed and 2 were skipped."),
    (
        "That line number is off by one because the header row is not counted.",
        "The header row isn't counted, so the line number is off by one.",
    ),
    ("Please paste the full stack trace.", "Could you paste the full stack trace?"),
    ("`users.email` needs a unique index.", "A unique index is needed on `users.email`."),
    (
        "I suggest splitting the module into two files: models and views.",
        "My suggestion: split the module into two files, models and views.",
    ),
    ("To undo this, run `git revert abc123`.", "Run `git revert abc123` if you want to undo it."),
    ("The script expects a CSV file with a header.", "A CSV file with a header is what the script expects."),
    ("Find all usages of `legacy_auth` and list the files.", "List every file that uses `legacy_auth`."),
    ("Read the config loader", "Look at the config loader"),
    ("Run the linter and fix what it reports", "Run linter, fix reported issues"),
    ("python requests timeout default value", "default timeout in python requests"),
    ("how to mock datetime.now in pytest", "pytest mock datetime.now"),
    ("Bump lodash to 4.17.21", "Upgrade lodash to 4.17.21"),
    (
        "Implemented the CSV export; it is covered by 4 new tests.",
        "The CSV export is implemented, with 4 new tests covering it.",
    ),
    ("Use `functools.cache` instead of a global dict.", "I'd replace the global dict by `functools.cache`."),
    (
        "`make deploy` needs Docker, which isn't running here.",
        "Docker is not running here, and `make deploy` needs it.",
    ),
    (
        "The port is taken by another process, so the server doesn't start.",
        "The server does not start: another process already uses the port.",
    ),
    ("Two of the tests are flaky; they depend on the clock.", "There are two flaky tests, both depend on the clock."),
    ("It is a known bug in pandas 2.1, fixed in 2.1.2.", "pandas 2.1 has this bug, it was fixed with 2.1.2."),
    ("All done: the package is published as 0.4.0.", "Version 0.4.0 of the package is published."),
    ("Shall I fix the other call sites too?", "Do you want the other call sites fixed as well?"),
    ("The value is cached for 5 minutes.", "Values stay in the cache for five minutes."),
    (
        "First start the database, then run the migrations.",
        "Start the database first and run the migrations afterwards.",
    ),
    (
        "The new endpoint is `GET /v2/users`, and it returns at most 100 rows.",
        "`GET /v2/users` is the new endpoint; at most 100 rows are returned.",
    ),
    (
        "Please restart the worker after changing the settings.",
        "After a change of the settings the worker has to be restarted.",
    ),
    ("The log shows nothing unusual.", "There is nothing unusual in the log."),
    ("Is it fine to drop support for Python 3.8?", "May I drop Python 3.8 support?"),
    (
        "I need the schema of the `events` table to go on.",
        "Can you send me the schema of the `events` table? I need it to continue.",
    ),
    ("The fix works on my machine, CI is still running.", "CI is still running; locally the fix works."),
    ("Run `pip install -e .` first, then `pytest`.", "```\npip install -e .\npytest\n```"),
    ("I've split the 900-line file into three modules.", "The file of 900 lines is now three modules."),
]
# Prompts: whether they ask or tell is all one.
SAME_REQUESTS = [
    ("Which exceptions can `fetch` raise?", "List the exceptions raised by `fetch`."),
    ("Summarise the breaking changes in version 3.", "What are the breaking changes of version 3?"),
]
DIFFERENT = [
    ("We import the module.", "The module is important."),
    ("Yes, that change breaks the public API.", "No, that change breaks the public API."),
    ("**Approve**\n\nThe change adds a retry.", "**Reject**\n\nThe change adds a retry."),
    ("## FAIL\nThe change adds a retry.", "## PASS\nThe change adds a retry."),
    ("**Blocker**\n\nThe change adds a retry.", "**Nitpick**\n\nThe change adds a retry."),
    ("The test is not flaky and the fix is safe.", "The test is flaky and the fix is not safe."),
    ("I fixed the bug in `a.py`.", "I will fix the bug in `a.py`."),
    ("I can delete the branch.", "I have deleted the branch."),
    ("You must restart the server.", "You may restart the server."),
    ("Should I delete it now?", "Should I delete it later?"),
    ("`a` depends on `b`.", "`b` depends on `a`."),
    ("Both tests fail.", "One test fails."),
    ("With this change the build works.", "With this change the build is broken."),
    ("This branch is rarely hit.", "This branch is hit."),
    ("It hardly ever fails here.", "It ever fails here."),
    ("a b " * 2_100 + "it is safe", "a b " * 2_100 + "it is bad"),
    ("All 48 tests pass now.", "All 48 tests fail now."),
    ("The cache is cleared before the request.", "The cache is cleared after the request."),
    ("I renamed `a.py` to `b.py`.", "I renamed `b.py` to `a.py`."),
    ("Should I merge the branch?", "Should I delete the branch?"),
    ("The parser calls the lexer.", "The lexer calls the parser."),
    ("I'll use Redis for the queue.", "I'll use RabbitMQ for the queue."),
    ("The bug is in the client.", "The bug is in the server."),
    ("The tests pass on Linux.", "The tests pass on macOS."),
    ("I've added logging to the importer.", "I've added logging to the exporter."),
    ("Which port should the server listen on?", "Which host should the server listen on?"),
    ("You can ignore this warning.", "You should not ignore this warning."),
    ("Everything is committed and pushed.", "Everything is committed but not pushed."),
    ("The variable is set but never read.", "The variable is read but never set."),
    ("I recommend upgrading to version 2.", "I recommend staying on version 1."),
    ("Is the service running?", "The service is running."),
    ("The timeout was increased from 30 to 60 seconds.", "The timeout was decreased from 60 to 30 seconds."),
    ("Only admins can see this page.", "Everyone can see this page."),
    (
        "The request is rejected because the header is missing.",
        "The request is rejected because the header is too long.",
    ),
    ("I fixed the typo in the README.", "I fixed the link in the README."),
    ("This needs a database migration.", "This needs a server restart."),
    ("The first test fails.", "The last test fails."),
    ("I would keep the class and delete the function.", "I would keep the function and delete the class."),
    ("Please run `make test`.", "Please run `make lint`."),
    ("Yes, go ahead.", "No, wait."),
    ("The deploy failed on staging.", "The deploy failed on production."),
    ("Do you want me to add a test for this?", "Do you want me to add a comment for this?"),
    ("You need Node 20 or newer.", "You need Node 18 or newer."),
    ("I moved `parse_args` into `cli.py`.", "I copied `parse_args` into `cli.py`."),
    ("Set `DEBUG=1` to see the queries.", "Set `TRACE=1` to see the queries."),
    ("Everything is up to date.", "Nothing is up to date."),
    ("The password is stored in plain text.", "The password is stored as a hash."),
    ("Three tests fail.", "Two tests fail."),
    ("The leak comes from the event listeners.", "The leak comes from the timers."),
    ("Which branch should I base this on?", "Which branch should I merge this into?"),
    ("I fixed the typo in the heading.", "I found a typo in the heading."),
    ("31 passed, 2 skipped.", "31 passed, 2 failed."),
    ("Please paste the full stack trace.", "Please paste the full config file."),
    ("The script expects a CSV file.", "The script expects a JSON file."),
    ("I will delete the branch after the merge.", "I will delete the branch before the merge."),
    ("It works in Chrome but not in Firefox.", "It works in Firefox but not in Chrome."),
    ("The function returns a list.", "The function returns a generator."),
    ("Use a lock.", "Use a queue."),
    ("The fix is in commit abc123.", "The fix is in commit def456."),
    ("I can start now.", "I can start tomorrow."),
    ("The API is public.", "The API is private."),
    ("Shall I upgrade React to 19?", "Shall I upgrade Vue to 3?"),
    ("The job runs every hour.", "The job runs every day."),
    ("Only the owner may delete a project.", "Any member may delete a project."),
    ("The config is loaded lazily.", "The config is loaded eagerly."),
    ("I've removed the dead code and the tests still pass.", "I've removed the dead code, but the tests fail."),
    ("Add retry logic to the uploader", "Add retry logic to the downloader"),
    ("Fix the pagination of the user list", "The order list's pagination is fixed"),
    ("Find all usages of `legacy_auth`.", "Remove all usages of `legacy_auth`."),
    ("Update the changelog", "Update the readme"),
    ("Explain how the scheduler picks the next job.", "Explain how the scheduler retries a failed job."),
    ("python requests timeout", "python requests proxy"),
    ("how to mock datetime.now in pytest", "how to freeze time in unittest"),
    ("Which exceptions can `fetch` raise?", "Which arguments does `fetch` take?"),
    ("The CSV export is implemented, the PDF export is not.", "The PDF export is implemented, the CSV export is not."),
    ("Run the unit tests", "Run the integration tests"),
    (
        "I updated the HTTP client's timeout and all tests pass.",
        "All tests pass; the HTTP proxy's timeout was updated.",
    ),
    ("The worker crashed because the disk was full.", "The disk is full since the worker crashed."),
    ("Rename the table users to accounts", "Rename the column users to accounts"),
    ("Check whether the cache is used", "Check whether the cache is cleared"),
    ("I reverted the last commit.", "I reverted the last two commits."),
    ("Move session handling to a separate module", "Move session handling to a separate service"),
    ("Write tests for the parser", "Write docs for the parser"),
    ("The upload works with small files.", "Uploading large files works."),
    ("Add a unique index on users.email", "Add a foreign key on users.email"),
    ("The tests in `api/` pass, those in `web/` fail.", "The tests in `web/` pass, those in `api/` fail."),
    ("Delete the temporary files when the job ends", "Delete the temporary files when the job starts"),
    ("Profile the import", "Speed up the import"),
    ("Should the export include deleted users?", "Should deleted users be left out of the export?"),
    ("Investigate the memory growth in the worker", "Fix the memory growth in the worker"),
]


@pytest.mark.parametrize(("first", "second"), SAME)
def test_same(first: str, second: str) -> None:
    found = likeness(first, second)
    assert found.same
    assert found.similarity >= 0.65
    assert likeness(second, first) == found


@pytest.mark.parametrize(("first", "second"), SAME_REQUESTS)
def test_the_same_request(first: str, second: str) -> None:
    assert likeness(first, second, as_request=True).same
    assert not likeness(first, second).same


@pytest.mark.parametrize(("first", "second"), DIFFERENT)
def test_different(first: str, second: str) -> None:
    assert not likeness(first, second).same
    assert not likeness(second, first).same


@pytest.mark.parametrize(
    "words",
    ["validation validator", "iteration iterator", "operation operator", "allocation allocator", "object objective",
     "experience experiment", "several severe", "positive position", "important imported", "valid validate"],
)  # fmt: skip
def test_stems_of_different_words(words: str) -> None:
    assert len(set(map(stem, words.split()))) == 2


@pytest.mark.parametrize(
    "words",
    ["validate validates validated validating validation", "iterator iterators", "dependency dependencies",
     "stop stopped", "experience experienced", "initial initially", "complete completely", "harness harnesses"],
)  # fmt: skip
def test_stems_of_one_word(words: str) -> None:
    assert len(set(map(stem, words.split()))) == 1


def test_the_words_of_a_query_have_no_order() -> None:
    first, second = "rename column keep index mysql", "mysql keep column rename index"
    assert likeness(first, second, is_query=True).same
    assert not likeness("python 3.11 asyncio", "python 3.12 asyncio", is_query=True).same
    assert not likeness("sort list python", "sort dict python", is_query=True).same


def test_a_comment_may_be_worded_more_freely() -> None:
    first, second = "the server closes idle links after 3 s", "idle connections get closed after 3 s"
    assert likeness(first, second, is_aside=True).same
    assert not likeness("closes after 3 s", "closes after 5 s", is_aside=True).same
    assert not likeness("never called twice", "called twice", is_aside=True).same


def test_white_space_and_markup_say_nothing() -> None:
    assert likeness("All  done\n", "All done") == Comparison(True, 1.0)
    assert likeness("## Result\n\n1. `a.py` is fixed\n2. tests pass", "a.py is **fixed**, tests pass.").same
    assert likeness("It takes 40ms and 1,000 rows.", "It takes 40 ms and 1000 rows.").same


def test_little_words_alone_must_be_the_same() -> None:
    assert likeness("Yes.", "yes").same
    assert not likeness("Yes.", "OK, go on.").same
    assert not likeness("Can you?", "You can.").same
    assert likeness("", "").same
    assert not likeness("", "Fixed the parser.").same


def test_a_statement_more_is_another_text() -> None:
    told = "I fixed the parser, updated the tests and ran the linter over the whole package."
    assert not likeness(told, f"{told} Old backups were deleted.").same


def test_long_texts_are_the_same_only_word_for_word() -> None:
    long = "The parser reads every line of the file. " * 600
    assert likeness(long, long.replace(" ", "\n")).same
    assert not likeness(long, long + "It works.").same
