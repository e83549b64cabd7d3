-- wrk: posts the bodies of a file in turn, and times those that are also in a second file, the short ones.
-- It wants a thread for each connection: a thread does not say which of its connections an answer came on.
-- Environment: BENCH_BODIES and BENCH_SHORT, the files, one body a line; BENCH_PATH, the path to post to.
-- Prints one line of JSON: how many were timed, their p50 and p99, and the errors.

local ffi = require("ffi")
ffi.cdef[[
typedef struct { long seconds; long nanoseconds; } timespec_t;
int clock_gettime(int clock, timespec_t *time);
]]
local MONOTONIC = 1
local time = ffi.new("timespec_t")

local function now_us()
  ffi.C.clock_gettime(MONOTONIC, time)
  return tonumber(time.seconds) * 1e6 + tonumber(time.nanoseconds) / 1e3
end

local threads = {}

function setup(thread)
  thread:set("number", #threads)
  thread:set("count", tonumber(os.getenv("BENCH_CONNECTIONS")))
  table.insert(threads, thread)
end

local requests, is_short = {}, {}
local turn, sent_at = 0, 0
taken_us = {}  -- of the short ones; the main thread reads it at the end

function init(args)
  local headers = { ["Content-Type"] = "application/json" }
  local short = {}
  for body in io.lines(os.getenv("BENCH_SHORT")) do
    short[body] = true
  end
  for body in io.lines(os.getenv("BENCH_BODIES")) do
    requests[#requests + 1] = wrk.format("POST", os.getenv("BENCH_PATH"), headers, body)
    is_short[#requests] = short[body] or false
  end
  turn = math.floor(number * #requests / count)  -- each begins elsewhere, as if they took turns
end

function request()
  turn = turn % #requests + 1
  sent_at = now_us()
  return requests[turn]
end

function response(status, headers, body)
  if is_short[turn] and status == 200 then
    taken_us[#taken_us + 1] = now_us() - sent_at
  end
end

function done(summary, latency)
  local all = {}
  for _, thread in ipairs(threads) do
    for _, taken in ipairs(thread:get("taken_us")) do
      all[#all + 1] = taken
    end
  end
  table.sort(all)
  local function percentile_ms(share)
    return (all[math.max(1, math.ceil(share * #all))] or 0) / 1e3
  end
  local errors = summary.errors
  io.write(string.format(
    'JSON {"timed": %d, "p50_ms": %f, "p99_ms": %f, "errors": %d}\n',
    #all, percentile_ms(0.5), percentile_ms(0.99),
    errors.connect + errors.read + errors.write + errors.status + errors.timeout))
end
