"""kvloft's view of a vLLM request."""

from itertools import count

from vllm.v1.kv_offload.base import ReqContext

from kvloft.request import Request
from kvloft.vllm.compat import positions_of

_serials = count()


def request_of(context: ReqContext) -> Request:
    """The `Request` of a vLLM request context: made at first sight, kept in the context, the same for its whole life.

    Its id is vLLM's with a serial number, for vLLM's is unique only among those in flight, and completions of an ended
    request may still come. The one place to read `kv_transfer_params` and `kv_hints`.
    """
    request = context.get_state(Request)
    if request is None:
        request = Request(id=(context.req_id, next(_serials)), position=positions_of(context).get)
        context.set_state(request)
    return request
