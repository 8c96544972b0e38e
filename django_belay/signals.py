"""Django signals of jobs, sent with ``send_robust``; their arguments are only ever added to.

``job_enqueued``: ``sender`` is the kind, ``job_ids`` the new rows' ids, ``queue``.
Sent at the call: the rows vanish again when the caller's transaction rolls back. For children it is
sent in the worker, while their parent runs; not for jobs that the clock or ``on_failure`` enqueues.

``job_started``, ``job_finished``: ``sender`` is the kind, ``job`` the row as claimed;
``job_finished`` adds ``state``, ``outcome`` and ``duration_s``. Sent in the worker.

``lease_lost``: ``sender`` is the kind, ``job`` the row as claimed.
"""

from django.dispatch import Signal

job_enqueued = Signal()
job_started = Signal()
job_finished = Signal()
lease_lost = Signal()
