"""The scribe: the one process that writes a store's segments, and its raw writes.

It is started by the owner as a file, in a bare interpreter (``python -I -S scribe.py``), so it
imports the standard library alone. It inherits the store's lock and holds the descriptors of
the segments; a batch it has received whole it writes and syncs even when the owner is killed
meanwhile, so that the death of the owner never tears a record. It ends at the end of its pipe.

A message is ``u32 length, u8 operation, body``; an answer is ``u32 errno, u64 number``.

========= =========================================== ======================
operation body                                        answers
========= =========================================== ======================
A         (one descriptor comes along)                its slot
W         u32 slot, u64 offset, u8 sync, u32 count,   the file's new size
          that many u32 lengths, the bytes
S         u32 slot                                    0, once synced
N         u32 slot of a directory, a name             the slot of the new file
R         u32 slot of a directory, old ``\\0`` new      0
C         u32 slot                                    0
========= =========================================== ======================
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import socket
import struct
import sys

RENAME_NOREPLACE = 1
RENAME_EXCL = 4  # macOS
MESSAGE = struct.Struct(">IB")
ANSWER = struct.Struct(">IQ")
SLOT = struct.Struct(">I")
WRITE = struct.Struct(">IQBI")
PAGE_BYTES = 4096
# Not an errno: the bytes read back, or the size of the file, are not what was written.
MISMATCH = 0xFFFF_0001


class WriteMismatch(OSError):
    """A write that reported success did not leave what was written."""

    def __init__(self) -> None:
        super().__init__(MISMATCH, "the file does not hold what was written")


def append(fd: int, offset: int, data: bytes, cuts: list[int], *, sync: bool) -> int:
    """Write ``data`` at the exact end of a file, check it, and sync it; the new size.

    ``cuts`` are the lengths of the single writes: they end at record boundaries. Nothing is
    retried. A write that is cut short is ENOSPC, whatever the kernel called it.
    """
    if os.fstat(fd).st_size != offset:
        raise WriteMismatch
    position = 0
    for size in cuts:
        written = os.pwrite(fd, data[position : position + size], offset + position)
        if written != size:
            raise OSError(errno.ENOSPC, f"short write: {written} of {size} bytes")
        position += size
    end = offset + len(data)
    if position != len(data) or os.fstat(fd).st_size != end or os.pread(fd, len(data), offset) != data:
        raise WriteMismatch
    if sync:
        os.fsync(fd)
    return end


def rename_noreplace(directory_fd: int, old: str, new_directory_fd: int, new: str) -> None:
    """Rename atomically, refusing with EEXIST when the new name is taken."""
    libc = ctypes.CDLL(None, use_errno=True)
    if sys.platform == "darwin":
        call, flag = libc.renameatx_np, RENAME_EXCL
    else:
        call, flag = libc.renameat2, RENAME_NOREPLACE
    call.argtypes = (ctypes.c_int, ctypes.c_char_p, ctypes.c_int, ctypes.c_char_p, ctypes.c_uint)
    if call(directory_fd, os.fsencode(old), new_directory_fd, os.fsencode(new), flag) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), new)


def create(directory_fd: int, name: str) -> int:
    """Create a file exclusively, mode 0600, following no link."""
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, 0o600, dir_fd=directory_fd)
    os.fchmod(fd, 0o600)
    return fd


def serve(connection: socket.socket) -> None:
    """Carry out messages until the owner closes its end."""
    slots: dict[int, int] = {}
    while True:
        received = _receive(connection)
        if received is None:
            return
        operation, body, fds = received
        try:
            answer = (0, _carry_out(operation, body, fds, slots))
        except OSError as error:
            answer = (error.errno or errno.EIO, 0)
        try:
            connection.sendall(ANSWER.pack(*answer))
        except OSError:
            return


def _carry_out(operation: int, body: bytes, fds: list[int], slots: dict[int, int]) -> int:
    if operation == ord("A"):
        return _keep(slots, fds[0])
    (slot,) = SLOT.unpack_from(body)
    fd = slots[slot]
    if operation == ord("W"):
        _, offset, sync, count = WRITE.unpack_from(body)
        start = WRITE.size + 4 * count
        cuts = list(struct.unpack_from(f">{count}I", body, WRITE.size))
        return append(fd, offset, body[start:], cuts, sync=bool(sync))
    if operation == ord("S"):
        os.fsync(fd)
    elif operation == ord("N"):
        return _keep(slots, create(fd, os.fsdecode(body[SLOT.size :])))
    elif operation == ord("R"):
        old, new = body[SLOT.size :].split(b"\x00")
        rename_noreplace(fd, os.fsdecode(old), fd, os.fsdecode(new))
    elif operation == ord("C"):
        os.close(slots.pop(slot))
    return 0


def _keep(slots: dict[int, int], fd: int) -> int:
    slot = max(slots, default=0) + 1
    slots[slot] = fd
    return slot


def _receive(connection: socket.socket) -> tuple[int, bytes, list[int]] | None:
    head, fds, _, _ = socket.recv_fds(connection, MESSAGE.size, 1)
    head += _exactly(connection, MESSAGE.size - len(head)) if head else b""
    if len(head) < MESSAGE.size:
        return None
    length, operation = MESSAGE.unpack(head)
    body = _exactly(connection, length)
    return None if len(body) < length else (operation, body, list(fds))


def _exactly(connection: socket.socket, size: int) -> bytes:
    parts = bytearray()
    while len(parts) < size:
        part = connection.recv(min(size - len(parts), 1 << 20))
        if not part:
            break
        parts += part
    return bytes(parts)


def main() -> None:
    """Run as a process: the socket is descriptor ``argv[1]``; the lock is merely held."""
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    with socket.socket(fileno=int(sys.argv[1])) as connection:
        serve(connection)


if __name__ == "__main__":
    main()
