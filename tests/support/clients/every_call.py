"""Asks two services with whatever tritonclient is installed, by every way it has; prints what came back.

every_call.py SIMPLE_HTTP SIMPLE_GRPC TEXTS_HTTP TEXTS_GRPC: host:port of the models `simple` (INT32 sums and
differences) and `identity_string`. The output is a JSON object: what was done, by the way it was asked.
"""

import asyncio
import importlib.metadata
import json
import queue
import sys
import uuid

import numpy as np
import tritonclient.grpc as over_grpc
import tritonclient.grpc.aio as aio_grpc
import tritonclient.http as over_http
import tritonclient.http.aio as aio_http
import tritonclient.utils.shared_memory as shm
from tritonclient.utils import InferenceServerException

NUMBERS = np.arange(16, dtype=np.int32).reshape(1, 16)
TEXTS = np.array([["国足".encode(), b"", b"a\0b"]], object)
PATIENCE_S = 60


def number_feeds(v2, binary=True):
    feeds = [v2.InferInput(name, [1, 16], "INT32") for name in ("INPUT0", "INPUT1")]
    for feed in feeds:
        if v2 is over_http:
            feed.set_data_from_numpy(NUMBERS, binary_data=binary)
        else:
            feed.set_data_from_numpy(NUMBERS)
    return feeds


def text_feeds(v2, binary=True):
    feed = v2.InferInput("INPUT0", [1, 3], "BYTES")
    if v2 is over_http:
        feed.set_data_from_numpy(TEXTS, binary_data=binary)
    else:
        feed.set_data_from_numpy(TEXTS)
    return [feed]


def sums(result):
    return [result.as_numpy(name).sum().item() for name in ("OUTPUT0", "OUTPUT1")]


def texts(result):
    return [text.decode() for text in result.as_numpy("OUTPUT0").ravel()]


def sync(v2, simple, strings):
    told = {"numbers": sums(simple.infer("simple", number_feeds(v2), request_id="7"))}
    told["request id"] = simple.infer("simple", number_feeds(v2), request_id="7").get_response(
        **({"as_json": True} if v2 is over_grpc else {})
    )["id"]
    told["texts"] = texts(strings.infer("identity_string", text_feeds(v2)))
    wanted = [v2.InferRequestedOutput("OUTPUT1")]
    alone = simple.infer(
        "simple", number_feeds(v2), outputs=wanted, model_version="1", priority=2, timeout=10**7
    )
    told["one output"] = [alone.as_numpy("OUTPUT0") is None, alone.as_numpy("OUTPUT1").sum().item()]
    best = simple.infer(
        "simple", number_feeds(v2), outputs=[v2.InferRequestedOutput("OUTPUT0", class_count=2)]
    )
    told["classes"] = best.as_numpy("OUTPUT0").astype(str).ravel().tolist()
    told["refused"] = refused(simple.infer, "nope", number_feeds(v2))
    told["ready"] = [simple.is_server_live(), simple.is_server_ready(), simple.is_model_ready("simple")]
    return told


def told_by(v2, simple):
    """What the server tells of itself and its model."""
    named = {"as_json": True} if v2 is over_grpc else {}
    config = simple.get_model_config("simple", **named)
    config = config.get("config", config)
    stats = simple.get_inference_statistics("simple", **named)["model_stats"][0]
    index = simple.get_model_repository_index(**named)
    index = index if v2 is over_http else index["models"]
    return {
        "server": simple.get_server_metadata(**named)["name"],
        "inputs": [tensor["name"] for tensor in simple.get_model_metadata("simple", **named)["inputs"]],
        "max_batch_size": config["max_batch_size"],
        "counted": int(stats["inference_count"]) > 0 and int(stats["inference_stats"]["success"]["ns"]) > 0,
        "index": [(model["name"], model["state"]) for model in index],
        "trace": simple.get_trace_settings(**named) is not None,
        "log": simple.get_log_settings(**named) is not None,
    }


def shared_memory(v2, simple, strings):
    key = f"/paddlewheel-test-{uuid.uuid4().hex}"
    size = TEXTS.size * 4 + sum(map(len, TEXTS.ravel()))
    given = shm.create_shared_memory_region("given", f"{key}-in", 64)
    got = shm.create_shared_memory_region("got", f"{key}-out", 128)
    try:
        for client in (simple, strings):
            client.register_system_shared_memory("given", f"{key}-in", 64)
            client.register_system_shared_memory("got", f"{key}-out", 128)
        shm.set_shared_memory_region(given, [NUMBERS])
        feeds = number_feeds(v2)
        wanted = [v2.InferRequestedOutput(name) for name in ("OUTPUT0", "OUTPUT1")]
        for place, (feed, output) in enumerate(zip(feeds, wanted, strict=True)):
            feed.set_shared_memory("given", 64)
            output.set_shared_memory("got", 64, offset=64 * place)
        simple.infer("simple", feeds, outputs=wanted)
        numbers = [shm.get_contents_as_numpy(got, np.int32, [1, 16], at).sum().item() for at in (0, 64)]
        shm.set_shared_memory_region(given, [v2_bytes(TEXTS)])
        feeds, wanted = text_feeds(v2), [v2.InferRequestedOutput("OUTPUT0")]
        feeds[0].set_shared_memory("given", size)
        wanted[0].set_shared_memory("got", size)
        strings.infer("identity_string", feeds, outputs=wanted)
        lying = shm.get_contents_as_numpy(got, np.object_, [1, 3]).ravel()
        named = {"as_json": True} if v2 is over_grpc else {}
        status = simple.get_system_shared_memory_status(**named)
        regions = status["regions"] if v2 is over_grpc else [region["name"] for region in status]
        return {"numbers": numbers, "texts": [t.decode() for t in lying], "regions": sorted(regions)}
    finally:
        for client in (simple, strings):
            client.unregister_system_shared_memory()
        shm.destroy_shared_memory_region(given)
        shm.destroy_shared_memory_region(got)


def v2_bytes(array):
    from tritonclient.utils import serialize_byte_tensor

    return serialize_byte_tensor(array)


def json_alone(simple, strings):
    wanted = [over_http.InferRequestedOutput(name, binary_data=False) for name in ("OUTPUT0", "OUTPUT1")]
    text = np.array([["国足", "", "ab"]], object)
    feed = over_http.InferInput("INPUT0", [1, 3], "BYTES")
    feed.set_data_from_numpy(text, binary_data=False)
    got = strings.infer("identity_string", [feed], outputs=[over_http.InferRequestedOutput("OUTPUT0", False)])
    return {
        "numbers": sums(simple.infer("simple", number_feeds(over_http, binary=False), outputs=wanted)),
        "texts": got.as_numpy("OUTPUT0").ravel().tolist(),
        "compressed": [
            sums(
                simple.infer(
                    "simple",
                    number_feeds(over_http),
                    request_compression_algorithm=one,
                    response_compression_algorithm=other,
                )
            )
            for one, other in (("gzip", "deflate"), ("deflate", "gzip"))
        ],
    }


def asynchronous_http(simple):
    pending = [simple.async_infer("simple", number_feeds(over_http)) for _ in range(4)]
    return [sums(one.get_result()) for one in pending]


def asynchronous_grpc(simple):
    done = queue.Queue()
    for _ in range(4):
        simple.async_infer("simple", number_feeds(over_grpc), lambda result, error: done.put((result, error)))
    return [sums(check(done.get(timeout=PATIENCE_S))) for _ in range(4)]


def stream(simple, strings):
    told = {}
    for name, client, feeds in (("simple", simple, number_feeds), ("identity_string", strings, text_feeds)):
        done = queue.Queue()
        client.start_stream(lambda result, error, done=done: done.put((result, error)))
        for number in range(4):
            client.async_stream_infer(
                name, feeds(over_grpc), request_id=str(number), enable_empty_final_response=True
            )
        results = [check(done.get(timeout=PATIENCE_S)) for _ in range(4)]
        client.stop_stream()
        told[name] = [sums(one) if name == "simple" else texts(one) for one in results]
        told[f"{name} ids"] = sorted(one.get_response().id for one in results)
    return told


def check(answer):
    result, error = answer
    if error is not None:
        raise error
    return result


def control(http, grpc):
    """Unloads a model over HTTP and loads it again over gRPC."""
    with over_http.InferenceServerClient(http, network_timeout=PATIENCE_S) as unloading:
        unloading.unload_model("identity_string")
        gone = [unloading.is_model_ready("identity_string")]
        gone += [model["state"] for model in unloading.get_model_repository_index()]
    loading = over_grpc.InferenceServerClient(grpc)
    loading.load_model("identity_string", client_timeout=PATIENCE_S)
    return {
        "unloaded": gone,
        "loaded": loading.is_model_ready("identity_string"),
        "texts": texts(loading.infer("identity_string", text_feeds(over_grpc))),
        "refused": refused(loading.load_model, "nope"),
    }


def refused(ask, *arguments):
    try:
        ask(*arguments)
    except InferenceServerException as exc:
        return exc.message()
    return ""


async def asyncio_http(simple, strings):
    async with (
        aio_http.InferenceServerClient(simple) as one,
        aio_http.InferenceServerClient(strings) as other,
    ):
        numbers = await asyncio.gather(*(one.infer("simple", number_feeds(over_http)) for _ in range(4)))
        return {
            "numbers": [sums(result) for result in numbers],
            "texts": texts(await other.infer("identity_string", text_feeds(over_http))),
            "ready": await one.is_model_ready("simple"),
            "statistics": len((await one.get_inference_statistics("simple"))["model_stats"]),
        }


async def asyncio_grpc(simple, strings):
    async def requests():
        for number in range(4):
            yield {"model_name": "simple", "inputs": number_feeds(over_grpc), "request_id": str(number)}

    async with (
        aio_grpc.InferenceServerClient(simple) as one,
        aio_grpc.InferenceServerClient(strings) as other,
    ):
        numbers = await asyncio.gather(*(one.infer("simple", number_feeds(over_grpc)) for _ in range(4)))
        streamed = [check(answer) async for answer in one.stream_infer(requests())]
        return {
            "numbers": [sums(result) for result in numbers],
            "texts": texts(await other.infer("identity_string", text_feeds(over_grpc))),
            "streamed": [sums(result) for result in streamed],
            "statistics": len((await one.get_inference_statistics("simple")).model_stats),
        }


def main():
    http_simple, grpc_simple, http_strings, grpc_strings = sys.argv[1:]
    told = {"version": importlib.metadata.version("tritonclient")}
    for kind, v2, *addresses in (
        ("http", over_http, http_simple, http_strings),
        ("grpc", over_grpc, grpc_simple, grpc_strings),
    ):
        simple, strings = map(v2.InferenceServerClient, addresses)
        told[f"{kind} sync"] = sync(v2, simple, strings)
        told[f"{kind} told"] = told_by(v2, simple)
        told[f"{kind} shared memory"] = shared_memory(v2, simple, strings)
        if v2 is over_http:
            told["http json"] = json_alone(simple, strings)
            told["http async"] = asynchronous_http(simple)
        else:
            told["grpc async"] = asynchronous_grpc(simple)
            told["grpc stream"] = stream(simple, strings)
    told["http asyncio"] = asyncio.run(asyncio_http(http_simple, http_strings))
    told["grpc asyncio"] = asyncio.run(asyncio_grpc(grpc_simple, grpc_strings))
    told["control"] = control(http_strings, grpc_strings)
    json.dump(told, sys.stdout)


if __name__ == "__main__":
    main()
