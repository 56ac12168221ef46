"""A vLLM engine of several processes, tensor-parallel over two, as its own program: `two_ranks.py MODEL`. Prints JSON."""

import json
import os
import sys
from pathlib import Path
from typing import Any

from serving import ROUNDS

from kvloft.vllm.engine import generate, read_metric, run_engine, set_environment


def main(model: str) -> dict[str, Any]:
    set_environment()
    os.environ["VLLM_ENABLE_V1_MULTIPROCESSING"] = "1"
    os.environ["VLLM_CPU_OMP_THREADS_BIND"] = "|".join(str(core) for core in sorted(os.sched_getaffinity(0))[:2])
    options = {"max_model_len": 320, "tensor_parallel_size": 2, "distributed_executor_backend": "mp"}
    settings = {"cpu_bytes_to_use": "8MiB", "blocks_per_chunk": 2}
    with run_engine(Path(model), 12, settings, **options) as llm:
        outputs = [generate(llm, batch, 3)[0] for batch in ROUNDS]
        return {
            "tokens": [list(output.outputs[0].token_ids) for output in outputs],
            "cached": [output.num_cached_tokens for output in outputs],
            "loaded": read_metric(llm, "vllm:kvloft_loaded"),
        }


if __name__ == "__main__":
    print(json.dumps(main(sys.argv[1])))
