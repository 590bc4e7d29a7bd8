-- Sends what the environment says, looks at every answer, and ends with one line of JSON.

local threads = {}
local expected = os.getenv("BENCH_EXPECTED")

wrk.method = "POST"
wrk.body = os.getenv("BENCH_BODY")
wrk.headers["Authorization"] = "Bearer " .. os.getenv("BENCH_TOKEN")
wrk.headers["Content-Type"] = "application/json"
wrk.headers["Accept"] = "application/json, text/event-stream"

function setup(thread)
  table.insert(threads, thread)
end

function init()
  right, wrong = 0, 0
end

function response(status, _, body)
  if status == 200 and string.find(body, expected, 1, true) then
    right = right + 1
  else
    wrong = wrong + 1
  end
end

function done(summary, latency)
  local completed, failed = 0, 0
  for _, thread in ipairs(threads) do
    completed = completed + thread:get("right")
    failed = failed + thread:get("wrong")
  end
  local errors = summary.errors
  failed = failed + errors.connect + errors.read + errors.write + errors.timeout
  io.write(string.format(
    '{"completed": %d, "failed": %d, "seconds": %.3f, "p50_us": %d, "p99_us": %d}\n',
    completed, failed, summary.duration / 1e6, latency:percentile(50), latency:percentile(99)))
end
