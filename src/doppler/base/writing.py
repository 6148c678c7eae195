"""Writing files: whole or not at all, and never over something that was not meant.

What is at the path decides how it is written. A regular file is replaced, by a rename, if it is of
the kind that is written; a symbolic link is followed; a FIFO or a character device, such as
`/dev/null`, is written into; `-` is the standard output. Everything else is refused.
"""

import contextlib
import os
import re
import stat
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from secrets import token_hex
from typing import Any

from doppler.base.files import STANDARD_STREAM
from doppler.errors import OutputError

SNIFF_BYTES = 1 << 16  # of what is there, to tell its kind by
_FORMAT = re.compile(rb'"format"\s*:\s*"(doppler-[a-z]+)"')
_GENERATOR = re.compile(rb'name="generator" content="(doppler-[a-z]+)"')
_MAGIC = {  # kinds that are recognised by their first bytes
    b"\x89PNG": "png",
    b"%PDF": "pdf",
    b"vertex,device,device_number\n": "csv",
    b"vertex,module,kind,device,device_number,": "csv",
}


@dataclass(frozen=True, slots=True)
class Target:
    """Where something can be written, and how."""

    path: Path
    is_stream: bool  # written into, not replaced
    mode: int | None = None  # permissions of the file that is replaced; None where there is none
    owner: tuple[int, int] | None = None  # its user and group


def is_stdout(path: str | Path) -> bool:
    """Whether a path is the standard output: `-`, `/dev/stdout`, or the file that it goes to."""
    if str(path) == STANDARD_STREAM:
        return True
    try:
        found, null = Path(path).stat(), Path(os.devnull).stat()
        return os.path.samestat(found, os.fstat(1)) and not os.path.samestat(found, null)
    except (OSError, ValueError):
        return False


def check_output(
    path: str | Path | None,
    *,
    kind: str | None = None,
    inputs: Iterable[str | Path | None] = (),
    force: bool = False,
) -> None:
    """Raise an `OutputError` unless `path` can be written: now, not after minutes of work.

    `kind` is what would be written: a format such as `doppler-graph`, or `csv`, `npz`, `png`…; a
    file of another kind is written over with `force` only. A file among the `inputs` never is.
    """
    if path is None:
        return
    target = find_target(path, kind=kind, force=force)
    for source in inputs:
        if source is not None and not target.is_stream and _is_same(target.path, source):
            raise OutputError(
                f"`{path}` is an input of this command, and would be written over",
                hint="write to another file",
            )
    if not target.is_stream and not target.path.parent.is_dir():
        raise OutputError(
            f"cannot write `{path}`: no folder `{Path(path).parent}`", hint="create it first"
        )


def find_target(path: str | Path, *, kind: str | None = None, force: bool = False) -> Target:
    """Where and how `path` is written; an `OutputError` where it must not be."""
    path = Path(path)
    if is_stdout(path):
        return Target(path, is_stream=True)
    try:
        found = path.stat()
    except FileNotFoundError:
        return Target(Path(os.path.realpath(path)), is_stream=False)  # a link to nothing yet, too
    except (OSError, ValueError) as error:
        raise _unwritable(path, error) from None
    if stat.S_ISFIFO(found.st_mode) or stat.S_ISCHR(found.st_mode) or _is_descriptor(path):
        return Target(path, is_stream=True)
    if not stat.S_ISREG(found.st_mode):
        what = "a folder" if stat.S_ISDIR(found.st_mode) else "not a regular file"
        raise OutputError(f"cannot write `{path}`: it is {what}", hint="name a file")
    if not found.st_mode & 0o222 or not os.access(path, os.W_OK):
        raise OutputError(
            f"cannot write `{path}`: it is read-only", hint="write to another file, or chmod +w it"
        )
    if kind is not None and not force:
        _check_kind(path, kind)
    return Target(
        Path(os.path.realpath(path)),
        is_stream=False,
        mode=stat.S_IMODE(found.st_mode),
        owner=(found.st_uid, found.st_gid),
    )


def write_text(
    path: str | Path, text: str, *, kind: str | None = None, force: bool = False
) -> None:
    """Write a text file whole or not at all; see `check_output` for `kind` and `force`."""
    write_bytes(path, text.encode("utf-8"), kind=kind, force=force)


def write_bytes(
    path: str | Path, data: bytes, *, kind: str | None = None, force: bool = False
) -> None:
    """Write a file whole or not at all; see `check_output` for `kind` and `force`."""
    target = find_target(path, kind=kind, force=force)
    if not target.is_stream:
        _replace(target, data, Path(path))
    elif is_stdout(path):
        _write_to_stdout(data)
    else:
        try:
            with target.path.open("wb", buffering=0) as stream:
                _write_all(stream, data)
        except OSError as error:
            raise _unwritable(Path(path), error) from None


def _check_kind(path: Path, kind: str) -> None:
    """Raise unless the file that is there is empty, or of the kind that is to be written."""
    try:
        with path.open("rb") as file:
            head = file.read(SNIFF_BYTES)
    except OSError as error:
        raise _unwritable(path, error) from None
    found = _kind_of(head)
    if head and found != kind:
        what = f"holds a {found}" if found else "is there already, and was not written by doppler"
        raise OutputError(
            f"`{path}` {what}; a {kind} would be written over it",
            hint="write to another file, or write over it with --force (in Python: force=True)",
        )


def _kind_of(head: bytes) -> str:
    """The kind of a file that begins so; empty where it is none that is written here."""
    if head.lstrip().startswith(b"{"):
        found = _FORMAT.search(head)
        return found[1].decode() if found else ""
    if head[8:9] == b"{":  # safetensors; those of others are not ours
        return "checkpoint" if b"doppler-" in head else ""
    if head.startswith(b"PK"):  # an archive; its first member tells whether it holds arrays
        name_bytes = int.from_bytes(head[26:28], "little")
        return "npz" if head[30 : 30 + name_bytes].endswith(b".npy") else ""
    if head.startswith(b"<!doctype html>"):
        found = _GENERATOR.search(head)
        return found[1].decode() if found else ""
    if head.startswith((b"<?xml", b"<svg")):
        return "svg" if b"<svg" in head else ""
    return next((kind for magic, kind in _MAGIC.items() if head.startswith(magic)), "")


def format_of(text: str) -> str:
    """The format that the text of one of our JSON files says it has; empty for any other."""
    return _kind_of(text[:SNIFF_BYTES].encode("utf-8", "replace"))


def _is_same(path: Path, other: str | Path) -> bool:
    try:
        return path.samefile(other)
    except (OSError, ValueError):
        return False


def _is_descriptor(path: Path) -> bool:
    """Whether a path is another name of an open file: `/dev/fd/3`."""
    return str(path).startswith(("/dev/fd/", "/proc/"))


def _replace(target: Target, data: bytes, named: Path) -> None:
    """Write to a temporary name in the same folder, then rename over the file.

    A new file gets the permissions that the process's umask leaves, as the system applies it: to
    ask for the umask is to change it, for all threads.
    """
    temporary = target.path.parent / f".doppler-{token_hex(8)}"
    flags = os.O_CREAT | os.O_EXCL | os.O_WRONLY | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(temporary, flags, 0o666 if target.mode is None else 0o600)
    except OSError as error:
        raise OutputError(
            f"cannot write `{named}`: {error.strerror}",
            hint="does the folder exist, and may you write there?",
        ) from None
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
        if target.owner is not None:
            with contextlib.suppress(OSError):  # only root may give files away
                os.chown(temporary, *target.owner)
        if target.mode is not None:
            temporary.chmod(target.mode)
        temporary.replace(target.path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError):
            raise _unwritable(named, error) from None
        raise


def _write_to_stdout(data: bytes) -> None:
    """Write through `sys.stdout`, so that it stays in order with what is printed."""
    binary = getattr(sys.stdout, "buffer", None)
    if binary is None:  # a notebook's
        sys.stdout.write(data.decode("utf-8", "replace"))
        return
    sys.stdout.flush()
    _write_all(binary, data)
    binary.flush()


def _write_all(stream: Any, data: bytes) -> None:
    view = memoryview(data)
    while view:
        view = view[stream.write(view) :]


def _unwritable(path: Path, error: Exception) -> OutputError:
    return OutputError(f"cannot write `{path}`: {getattr(error, 'strerror', None) or error}")
