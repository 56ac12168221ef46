"""kvloft's view of a vLLM request."""

import logging
from collections.abc import Callable, Mapping
from itertools import count
from typing import Any

from vllm.v1.kv_offload.base import ReqContext

from kvloft.policies.hints import read_hints
from kvloft.request import Request
from kvloft.vllm.compat import positions_of

_log = logging.getLogger(__name__)
_serials = count()
_told: set[str] = set()
"""Problems that have been logged."""
_TOLD_LIMIT = 100


def request_of(context: ReqContext, ignored: Callable[[int], None] | None = None) -> Request:
    """The `Request` of a vLLM request context: made at first sight, kept in the context, the same for its whole life.

    Its id is vLLM's with a serial number, for vLLM's is unique only among those in flight, and completions of an ended
    request may still come. Its hints come from `kv_transfer_params["kvloft"]`, and from actions of type "kvloft" in
    `kv_hints`, which win. What is malformed is ignored and logged once.

    Args:
        context: vLLM's.
        ignored: told at first sight how many hints were ignored, if any were.
    """
    request = context.get_state(Request)
    if request is None:
        fields, problems = _hints(context)
        request = Request(id=(context.req_id, next(_serials)), position=positions_of(context).get, **fields)
        context.set_state(request)
        if problems:
            _log_once(problems)
            if ignored:
                ignored(len(problems))
    return request


def _hints(context: ReqContext) -> tuple[dict[str, Any], list[str]]:
    parameters: object = context.kv_transfer_params
    given = [parameters.get("kvloft")] if isinstance(parameters, Mapping) else []
    if context.kv_hints is not None:
        given += [action.payload for action in context.kv_hints.actions if action.action_type == "kvloft"]
    fields: dict[str, Any] = {}
    problems: list[str] = []
    for one in given:
        hints = read_hints(one)
        fields |= hints.fields
        problems += hints.problems
    return fields, problems


def _log_once(problems: list[str]) -> None:
    for problem in problems:
        if problem not in _told and len(_told) < _TOLD_LIMIT:
            _told.add(problem)
            _log.warning("ignored in a request: %s", problem)
