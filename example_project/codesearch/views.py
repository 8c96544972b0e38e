"""The search page."""

from django.http import HttpRequest, HttpResponse
from django.shortcuts import render

from .search import find, published_version


def search(request: HttpRequest) -> HttpResponse:
    """Files of the published index where the term occurs most."""
    term = request.GET.get("q", "").strip()
    context = {"term": term, "hits": find(term) if term else [], "version": published_version()}
    return render(request, "codesearch/search.html", context)
