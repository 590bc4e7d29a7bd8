"""Pieces of files below the workspace, read and written, and whole files moved to their names, without
following any link."""

from .originals import BUILTINS as __builtins__

import errno
import posix
from binascii import Error, a2b_base64, b2a_base64
from os import fsencode, strerror
from posix import close, fstat, ftruncate, link, mkdir, pread, pwrite, rename, unlink
from posix import open as open_at
from posix import stat as stat_at
from stat import S_ISREG

MAX_PIECE_BYTES = 1 << 20
MAX_PATH_BYTES, MAX_NAME_BYTES, MAX_DEPTH = 4096, 255, 64
LARGEST_OFFSET = (1 << 63) - 1
DIRECTORY = posix.O_RDONLY | posix.O_DIRECTORY | posix.O_NOFOLLOW | posix.O_CLOEXEC
# Without O_NONBLOCK the opening of a FIFO would wait for its other end.
FILE = posix.O_NOFOLLOW | posix.O_NONBLOCK | posix.O_NOCTTY | posix.O_CLOEXEC


class Refused(Exception):
    """The request is not done; the text says why."""


def write_piece(workspace: str, path: str, offset: int, data: str):
    """Writes a piece; at 0 the file is made anew. None, or why not."""
    try:
        content = decoded(data)
        check_place(offset, len(content))
        fd = open_below(workspace, path, posix.O_WRONLY | posix.O_CREAT)
        try:
            write_at(fd, path, offset, content)
        finally:
            close(fd)
    except (Refused, OSError) as problem:
        return reason(path, problem)
    return None


def read_piece(workspace: str, path: str, offset: int, length: int) -> dict:
    """The fields of a `file_read`: a piece of at most 1 MiB, or why not."""
    try:
        length = min(max(length, 0), MAX_PIECE_BYTES)
        check_place(offset, length)
        fd = open_below(workspace, path, posix.O_RDONLY)
        try:
            content = read_at(fd, offset, length)
            end = offset + len(content) >= fstat(fd).st_size
        finally:
            close(fd)
    except (Refused, OSError) as problem:
        return {"data": "", "end": True, "error": reason(path, problem)}
    return {"data": b2a_base64(content, newline=False).decode("ascii"), "end": end}


def move_file(workspace: str, path: str, name: str, replace: bool) -> dict:
    """Gives a file another name in its directory; one that has that name only goes if it is to."""
    try:
        new = components(name)
        if len(new) != 1:
            raise Refused("the new name is a name, not a path")
        fd, old = open_parent(workspace, path)
        try:
            check_regular(fd, old)
            if replace:
                rename(old, new[0], src_dir_fd=fd, dst_dir_fd=fd)
            else:
                # Unlike a renaming, a link never takes another's place.
                link(old, new[0], src_dir_fd=fd, dst_dir_fd=fd, follow_symlinks=False)
                unlink(old, dir_fd=fd)
        finally:
            close(fd)
    except (Refused, OSError) as problem:
        return told(path, problem)
    return {}


def remove_file(workspace: str, path: str) -> dict:
    """Removes a regular file."""
    try:
        fd, name = open_parent(workspace, path)
        try:
            check_regular(fd, name)
            unlink(name, dir_fd=fd)
        finally:
            close(fd)
    except (Refused, OSError) as problem:
        return told(path, problem)
    return {}


def check_regular(parent: int, name: bytes) -> None:
    if not S_ISREG(stat_at(name, dir_fd=parent, follow_symlinks=False).st_mode):
        raise Refused("it is not a regular file")


def told(path: str, problem) -> dict:
    """Why not, and whether that is because a file is there, or is not."""
    answer = {"error": reason(path, problem)}
    kinds = {errno.EEXIST: "exists", errno.ENOENT: "missing"}
    kind = kinds.get(getattr(problem, "errno", None))
    return {**answer, "problem": kind} if kind else answer


def decoded(data: str) -> bytes:
    try:
        content = a2b_base64(data)
    except (Error, ValueError):
        content = None
    # The decoder skips what is no base64.
    if content is None or b2a_base64(content, newline=False).decode("ascii") != data:
        raise Refused("the data is no base64")
    if len(content) > MAX_PIECE_BYTES:
        raise Refused(f"a piece has at most {MAX_PIECE_BYTES} bytes, this one {len(content)}")
    return content


def check_place(offset: int, length: int) -> None:
    if not 0 <= offset <= LARGEST_OFFSET - length:
        raise Refused(f"the offset {offset} is out of range")


def open_below(workspace: str, path: str, flags: int) -> int:
    """Opens a regular file, going down directory by directory; makes those that are missing."""
    fd, name = open_parent(workspace, path, bool(flags & posix.O_CREAT))
    try:
        found = open_at(name, flags | FILE, 0o644, dir_fd=fd)
    finally:
        close(fd)
    if not S_ISREG(fstat(found).st_mode):
        close(found)
        raise Refused("it is not a regular file")
    return found


def open_parent(workspace: str, path: str, make: bool = False) -> tuple:
    """The directory that a path's last component is in, open, and that component."""
    *directories, name = components(path)
    fd = open_at(workspace, posix.O_RDONLY | posix.O_DIRECTORY | posix.O_CLOEXEC)
    try:
        for directory in directories:
            below = open_directory(fd, directory, make)
            close(fd)
            fd = below
    except BaseException:
        close(fd)
        raise
    return fd, name


def components(path: str) -> list:
    """The names along a relative path, as bytes."""
    if not isinstance(path, str) or not path or path.startswith("/"):
        raise Refused("a path is relative to the workspace, for example data/in.csv")
    try:
        names = fsencode(path).split(b"/")
    except UnicodeEncodeError:
        raise Refused("the path is no valid text") from None
    if len(path) > MAX_PATH_BYTES or len(names) > MAX_DEPTH or max(map(len, names)) > MAX_NAME_BYTES:
        raise Refused("the path is too long")
    if b"\0" in fsencode(path) or any(name in (b"", b".", b"..") for name in names):
        raise Refused("a path has no empty part, no `.`, no `..` and no null byte")
    return names


def open_directory(parent: int, name: bytes, make: bool) -> int:
    if make:
        try:
            mkdir(name, 0o755, dir_fd=parent)
        except FileExistsError:
            pass
    return open_at(name, DIRECTORY, dir_fd=parent)


def write_at(fd: int, path: str, offset: int, content: bytes) -> None:
    size = fstat(fd).st_size
    if offset == 0:
        ftruncate(fd, 0)
    elif offset > size:
        raise Refused(f"the file has {size} bytes, so that a piece cannot begin at {offset}")
    rest = memoryview(content)
    while rest:
        written = pwrite(fd, rest, offset)
        rest, offset = rest[written:], offset + written


def read_at(fd: int, offset: int, length: int) -> bytes:
    parts = []
    while length:
        part = pread(fd, length, offset)
        if not part:
            break
        parts.append(part)
        offset, length = offset + len(part), length - len(part)
    return b"".join(parts)


def reason(path: str, problem) -> str:
    """One sentence for people."""
    if isinstance(problem, Refused):
        return str(problem)
    if problem.errno in (errno.ELOOP, errno.ENOTDIR):
        return "a part of the path is a link or no directory"
    if problem.errno == errno.ENXIO:
        return "it is not a regular file"
    return strerror(problem.errno) if problem.errno else "it cannot be opened"
