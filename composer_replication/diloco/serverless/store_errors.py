"""What a failed request to an object store means: not there, exists already, cannot work, or try again.

The file systems of fsspec raise what their clients raise, so this reads codes and names of classes and imports none.
"""

from __future__ import annotations

import errno
import re
from collections.abc import Iterator, Mapping
from typing import Any, Literal

Verdict = Literal["absent", "exists", "final", "again"]

# What a later attempt cannot mend: no space, no permission, a path that cannot be.
_FINAL_ERRNOS = {
    errno.ENOSPC,
    errno.EDQUOT,
    errno.EFBIG,
    errno.EROFS,
    errno.EACCES,
    errno.EPERM,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENAMETOOLONG,
    errno.ENOTSUP,
}
_NO_CONTAINER = {
    "NoSuchBucket",
    "InvalidBucketName",
    "ContainerNotFound",
    "RepositoryNotFoundError",
    "RevisionNotFoundError",
    "BucketNotFoundError",
    "GatedRepoError",
}
_REFUSED = {
    "NoCredentialsError",
    "PartialCredentialsError",
    "CredentialRetrievalError",
    "ProfileNotFound",
    "ParamValidationError",
    "DefaultCredentialsError",
    "ClientAuthenticationError",
    "AccessDenied",
    "InvalidAccessKeyId",
    "SignatureDoesNotMatch",
    "AuthorizationHeaderMalformed",
    "ExpiredToken",
    "InvalidToken",
    "401",
    "403",
}
_EXISTS = {"PreconditionFailed", "412", "BlobAlreadyExists"}
_WAYS_OUT = (
    ({errno.ENOSPC, errno.EDQUOT, errno.EFBIG}, "make room there or choose another place"),
    ({errno.EACCES, errno.EPERM, errno.EROFS}, "allow this user to write there or choose another place"),
    (_NO_CONTAINER, "create the bucket or repository, or correct the address"),
    ({"EOFError"}, "the object is damaged: write it again"),
    (_REFUSED, "check the credentials and that they may read, write, list and delete"),
)
_TEXT_LIMIT = 300


def verdict_of(error: BaseException) -> Verdict:
    """Return what an exception from a store means for the request that raised it."""
    marks = _marks(error)
    if marks & _NO_CONTAINER:
        return "final"
    if isinstance(error, FileNotFoundError) or marks & {"NoSuchKey", "404"}:
        return "absent"
    if isinstance(error, FileExistsError) or marks & _EXISTS:
        return "exists"
    if isinstance(error, (PermissionError, TypeError, ValueError)) or marks & (_REFUSED | _FINAL_ERRNOS):
        return "final"
    return "final" if str(error).startswith("Forbidden") else "again"  # gcsfs: an OSError without a number


def way_out(error: BaseException) -> str:
    """Return the advice for an error, or the general one."""
    marks = _marks(error)
    if isinstance(error, PermissionError) and not marks & {errno.EACCES, errno.EPERM}:
        marks |= {"403"}
    return next((advice for known, advice in _WAYS_OUT if marks & known), "check the address and that the store runs")


def one_line(error: BaseException, options: Mapping[str, Any]) -> str:
    """Return an error's type and text in one line, without what the storage options hold and without URL queries."""
    text = " ".join(str(error).split())
    for secret in sorted(_strings(options), key=len, reverse=True):
        text = text.replace(secret, "***")
    text = re.sub(r"(://[^/?#\s\"']+)([^?#\s\"']*)[?#][^\s\"']*", r"\1\2", re.sub(r"://[^/@\s]*@", "://***@", text))
    return f"{type(error).__name__}: {text[:_TEXT_LIMIT]}" if text else type(error).__name__


def _marks(error: BaseException) -> set[str | int]:
    """Class names, error codes, HTTP statuses and errnos of an error and of what caused it."""
    marks: set[str | int] = set()
    seen: set[int] = set()
    one: BaseException | None = error
    while one is not None and id(one) not in seen:
        seen.add(id(one))
        marks.update(kind.__name__ for kind in type(one).__mro__)
        response = getattr(one, "response", None)
        if isinstance(response, Mapping):  # botocore
            marks.add(str(response.get("Error", {}).get("Code", "")))
            marks.add(str(response.get("ResponseMetadata", {}).get("HTTPStatusCode", "")))
        for holder, name in ((one, "code"), (one, "status_code"), (one, "error_code"), (response, "status_code")):
            value = getattr(holder, name, None)
            if isinstance(value, (str, int)):
                marks.add(str(value))
        if isinstance(one, OSError) and one.errno is not None and not one.__cause__:
            marks.add(one.errno)  # with a cause it is s3fs's translation of an answer, which has its code
        one = one.__cause__
    return marks


def _strings(value: object, key: str = "") -> Iterator[str]:
    if isinstance(value, Mapping):
        for name, one in value.items():
            yield from _strings(one, str(name))
    elif isinstance(value, str) and len(value) > 3 and not key.startswith(("endpoint", "region")):
        yield value
