"""Members of a ZIP archive, each read by itself: a ref says where it lies, so only the driver reads the directory."""

import bz2
import stat
import struct
import zipfile
import zlib
from collections.abc import Iterator

from sightline.data.disk import MAX_FILE_BYTES
from sightline.detection.sources.source_file import SourceFile
from sightline.errors import FormatError, ImageError

_HEADER = struct.Struct("<4s5H3I2H")
_SIGNATURE = b"PK\x03\x04"
_USUAL_EXTRA_BYTES = 512
_ENCRYPTED = 0x1
_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED, zipfile.ZIP_BZIP2)
_UNREADABLE = (zipfile.BadZipFile, NotImplementedError, OSError, ValueError, struct.error, EOFError, IndexError)


class ZipMembers:
    """What is in a ZIP; nothing is extracted, so names cannot lead anywhere."""

    def __init__(self, file: SourceFile) -> None:
        self._file = file

    def list(self) -> Iterator[tuple[str, str, str]]:
        """Name, version and ref of every member that is no folder; a ref that begins with ! says what is wrong."""
        try:
            with self._file.stream() as stream, zipfile.ZipFile(stream) as archive:
                members = archive.infolist()
        except _UNREADABLE as error:
            raise FormatError(f"{self._file.public!r} cannot be read as a ZIP archive: {error}") from None
        # Of members of one name the last counts, as when they are unpacked.
        for member in {member.filename: member for member in members}.values():
            if not member.is_dir():
                yield member.filename, _version(member), _ref(member)

    def read(self, ref: str) -> bytes:
        """The bytes of a member, checked against its checksum."""
        offset, packed, size, method, crc = map(int, ref.split(":"))
        if max(packed, size) > MAX_FILE_BYTES:
            raise ImageError("file not readable", f"it has {size} bytes, more than {MAX_FILE_BYTES}", stage="path")
        content = _unpacked(self._packed(offset, packed), size, method)
        if len(content) != size or zlib.crc32(content) != crc:
            raise ImageError("damaged archive", "the checksum differs, or the archive was changed", stage="read")
        return content

    def is_visible(self) -> bool:
        """Whether the archive is there."""
        return self._file.is_visible()

    def _packed(self, offset: int, packed: int) -> bytes:
        """In one piece, for a bucket answers each question slowly."""
        block = self._file.read_at(_HEADER.size + packed + _USUAL_EXTRA_BYTES, offset)
        if len(block) < _HEADER.size or not block.startswith(_SIGNATURE):
            raise ImageError("damaged archive", f"no member at byte {offset}, or the archive was changed", stage="read")
        *_, name_bytes, extra_bytes = _HEADER.unpack_from(block)
        start = _HEADER.size + name_bytes + extra_bytes
        if start + packed > len(block):
            block += self._file.read_at(start + packed - len(block), offset + len(block))
        return block[start : start + packed]


def _version(member: zipfile.ZipInfo) -> str:
    """What changes when the image does, or when it is packed in a way that can be read."""
    readable = member.compress_type in _METHODS and not _ref(member).startswith("!")
    return f"{member.CRC:08x}-{member.file_size}" if readable else ""


def _ref(member: zipfile.ZipInfo) -> str:
    if member.flag_bits & _ENCRYPTED:
        return "!encrypted archive member"
    if stat.S_ISLNK(member.external_attr >> 16):
        return "!link in an archive"
    return f"{member.header_offset}:{member.compress_size}:{member.file_size}:{member.compress_type}:{member.CRC}"


def _unpacked(data: bytes, size: int, method: int) -> bytes:
    """At most one byte more than was declared, so that a bomb does not go off."""
    try:
        match method:
            case zipfile.ZIP_STORED:
                return data
            case zipfile.ZIP_DEFLATED:
                return zlib.decompressobj(-zlib.MAX_WBITS).decompress(data, size + 1)
            case zipfile.ZIP_BZIP2:
                return bz2.BZ2Decompressor().decompress(data, size + 1)
    except (zlib.error, OSError, ValueError, EOFError) as error:
        raise ImageError("damaged archive", str(error), stage="read") from None
    raise ImageError("compression not supported", f"method {method} of a ZIP: pack with deflate, or not", stage="path")
