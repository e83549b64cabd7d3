-- wrk: posts the bodies of a file in turn, one a line, and prints the figures as one line of JSON.
-- Environment: BENCH_BODIES, the file; BENCH_PATH, the path to post to. Without BENCH_BODIES it gets that path.
-- BENCH_DELAY_MS: what every connection waits before each request; 0 for none.

local requests = {}
local turn = 0
local delay_ms = tonumber(os.getenv("BENCH_DELAY_MS") or "0")

if delay_ms > 0 then
  function delay()
    return delay_ms
  end
end

function init(args)
  local path = os.getenv("BENCH_PATH")
  local bodies = os.getenv("BENCH_BODIES")
  if bodies == nil then
    requests[1] = wrk.format("GET", path)
    return
  end
  local headers = { ["Content-Type"] = "application/json" }
  for body in io.lines(bodies) do
    requests[#requests + 1] = wrk.format("POST", path, headers, body)
  end
end

function request()
  turn = turn % #requests + 1
  return requests[turn]
end

function done(summary, latency)
  local errors = summary.errors
  io.write(string.format(
    'JSON {"requests": %d, "seconds": %f, "p50_ms": %f, "p90_ms": %f, "p99_ms": %f, "errors": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(90) / 1e3,
    latency:percentile(99) / 1e3,
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
