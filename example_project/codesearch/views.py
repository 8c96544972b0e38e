"""The search page, and the button that publishes a version."""

from __future__ import annotations

from django.contrib import messages
from django.contrib.auth.decorators import login_required, permission_required
from django.http import HttpRequest, HttpResponse, HttpResponseBadRequest
from django.shortcuts import get_object_or_404, redirect, render
from django.views.decorators.http import require_GET, require_POST

from django_belay import client

from .jobs import APPROVAL
from .models import IndexVersion
from .search import find, listed, published_version, recent_versions

DECISIONS = {"approve": True, "discard": False}


@require_GET
def search(request: HttpRequest) -> HttpResponse:
    """Files of the published index where the term occurs most, and the newest versions."""
    term = request.GET.get("q", "").strip()
    context = {
        "term": term,
        "hits": find(term) if term else [],
        "version": published_version(),
        "versions": recent_versions(),
        "may_decide": request.user.has_perm("codesearch.approve_index"),
    }
    return render(request, "codesearch/search.html", context)


@require_POST
@login_required
@permission_required("codesearch.approve_index", raise_exception=True)
def decide(request: HttpRequest, version_id: int) -> HttpResponse:
    """Send the waiting job its signal; the job publishes or discards the version."""
    version = get_object_or_404(IndexVersion, pk=version_id)
    decision = request.POST.get("decision", "")
    if decision not in DECISIONS:
        return HttpResponseBadRequest(f"decision is one of {', '.join(DECISIONS)}", content_type="text/plain")
    [found] = listed([version])
    if not found.may_be_decided:
        messages.error(request, f"Index {version.pk} does not wait for anybody: {found.status}.")
        return redirect("search")
    client.signal(
        version.job_id, APPROVAL, {"approved": DECISIONS[decision], "by": request.user.get_username()}
    )
    messages.success(request, f"Sent: {decision} index {version.pk}. A worker does it as soon as one runs.")
    return redirect("search")
