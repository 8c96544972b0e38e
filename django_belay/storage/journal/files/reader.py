"""Single records read back from the segments by their place."""

from __future__ import annotations

import copy
import os
import threading
from collections import OrderedDict
from typing import Any, Final

from django_belay.storage.journal.format.definition import JobDefinition
from django_belay.storage.journal.format.event_v1 import Inserted
from django_belay.storage.journal.format.event_v2 import ResultRecorded, decode_event_v2
from django_belay.storage.journal.format.extension import decode_extension
from django_belay.storage.journal.format.mutation import decode_mutation
from django_belay.storage.journal.format.record import Decoded, Incomplete, Record, decode_record
from django_belay.storage.journal.format.refusal import located, refuse
from django_belay.storage.journal.format.segment import segment_name
from django_belay.storage.journal.format.snapshot import decode_snapshot
from django_belay.storage.journal.state.finished import place
from django_belay.storage.journal.state.rows import columns_of, stated_columns

from . import disk
from .disk import Directory, File

_FIRST_READ: Final = 1024
_OPEN_FILES: Final = 64
#: Operations of many jobs that are kept decoded: their jobs are often read one after the other.
_KEPT: Final = 4


class SegmentReader:
    """Random reads in one generation's segments; every record is checked again as it is read.

    Safe to use from many threads: a compaction reads beside the owner.
    """

    def __init__(self, segments: Directory) -> None:
        # A directory of its own, so that a reader outlives whoever opened the first one.
        self._segments = Directory(fd=os.dup(segments.fd), path=segments.path)
        self._files: OrderedDict[int, File] = OrderedDict()
        self._kept: OrderedDict[int, dict[bytes, dict[str, Any]]] = OrderedDict()
        self._lock = threading.RLock()

    def turn_to(self, segments: Directory) -> None:
        """Read from another generation from now on."""
        with self._lock:
            self.close()
            self._segments = Directory(fd=os.dup(segments.fd), path=segments.path)

    def close(self) -> None:
        """Let go of every file."""
        with self._lock:
            for file in self._files.values():
                file.close()
            self._files.clear()
            self._kept.clear()
            self._segments.close()

    def record(self, where: int) -> Record:
        """The record at a location."""
        with self._lock:
            return self._record(where)

    def _record(self, where: int) -> Record:
        segment_id, offset = place(where)
        file = self._open(segment_id)
        try:
            found = decode_record(os.pread(file.fd, _FIRST_READ, offset))
            if isinstance(found, Incomplete) and found.record_bytes is not None:
                found = decode_record(disk.read_exactly(file.fd, offset, found.record_bytes))
        except OSError as error:
            raise located(disk.io_error(error, file.path), offset=offset) from error
        if not isinstance(found, Decoded):
            raise located(refuse("physical_corruption", "incomplete_record"), path=file.path, offset=offset)
        return found.record

    def definition(self, where: int) -> JobDefinition:
        """The definition in the snapshot or insertion at a location."""
        record = self.record(where)
        if (record.record_type, record.payload_schema) == (7, 1):
            return decode_snapshot(record.payload).definition
        event = decode_mutation(record.payload)
        if not isinstance(event, Inserted):
            raise refuse("physical_corruption", "record_profile", record.record_type)
        return event.definition

    def columns(self, where: int, job_id: bytes) -> dict[str, Any]:
        """The columns that the row or operation at a location states for a job."""
        with self._lock:
            stated = self._kept.get(where)
            if stated is None:
                record = self._record(where)
                item = decode_extension(record.record_type, record.payload_schema, record.payload)
                stated = stated_columns(item)
                if len(stated) > 1:
                    self._keep(where, stated)
            columns = columns_of(stated, job_id)
            return copy.deepcopy(columns) if len(stated) > 1 else columns

    def _keep(self, where: int, stated: dict[bytes, dict[str, Any]]) -> None:
        self._kept[where] = stated
        if len(self._kept) > _KEPT:
            self._kept.popitem(last=False)

    def result(self, where: int) -> ResultRecorded:
        """The result at a location."""
        record = self.record(where)
        event = decode_event_v2(record.record_type, record.payload_schema, record.payload)
        assert isinstance(event, ResultRecorded)
        return event

    def _open(self, segment_id: int) -> File:
        file = self._files.get(segment_id)
        if file is not None:
            self._files.move_to_end(segment_id)
            return file
        try:
            file = disk.open_file(self._segments, segment_name(segment_id))
        except OSError as error:
            raise disk.io_error(error, self._segments.child(segment_name(segment_id))) from error
        self._files[segment_id] = file
        if len(self._files) > _OPEN_FILES:
            _, oldest = self._files.popitem(last=False)
            oldest.close()
        return file
