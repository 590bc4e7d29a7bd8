// The MCP project's conformance suite against a server over HTTP: both published lines of it, in every
// version of the protocol that they know.
//
//   conformance.mjs program                the built binary, which is started
//   conformance.mjs fixture URL TOKEN      a server that is there and has the suite's own tools
//
// Environment: FORGE_TEST_TOOLS (directory made by `cargo xtask test`), FORGE_TEST_BINARY (the program).
// What is expected to fail is in tests/conformance, with reasons; the suite fails as well when one of
// those passes. It sends no token, so a proxy here adds it, and changes nothing else.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, rm } from "node:fs/promises";
import http from "node:http";
import { tmpdir } from "node:os";
import { dirname, join } from "node:path";
import { createInterface } from "node:readline";
import { fileURLToPath } from "node:url";
import { promisify } from "node:util";

const expectations = join(dirname(fileURLToPath(import.meta.url)), "..", "conformance");
const suites = join(process.env.FORGE_TEST_TOOLS, "conformance", "node_modules");
const RUNS = [
  { suite: "released", name: "0.1", options: [] },
  { suite: "next", name: "0.2, 2025-06-18", options: ["--spec-version", "2025-06-18"] },
  { suite: "next", name: "0.2, 2025-11-25", options: ["--spec-version", "2025-11-25"] },
  { suite: "next", name: "0.2, 2026-07-28", options: ["--spec-version", "2026-07-28"] },
  // No version has the extensions' scenarios; then they are all run.
  { suite: "next", name: "0.2, with extensions", options: [] },
];

/** The program, with a data directory of its own: where it listens, and the token that it prints. */
async function startProgram(directory) {
  const options = ["serve", "--http", "127.0.0.1:0", "--data-dir", directory];
  // No code is run, so no sandbox need wait for any.
  const environment = { PATH: process.env.PATH, HOME: directory, MCP_FORGE_WARM_ENABLED: "false" };
  const server = spawn(process.env.FORGE_TEST_BINARY, options, { env: environment, stdio: ["ignore", "ignore", "pipe"] });
  let token;
  for await (const line of createInterface({ input: server.stderr })) {
    token ??= line.match(/^\s+(mcpf_[0-9a-f]{64})$/)?.[1];
    const url = line.match(/^Listening at (.*)$/)?.[1];
    if (url) {
      server.stderr.resume();
      return { server, url: `${url}/mcp`, token };
    }
  }
  throw new Error("the server did not start");
}

/** Adds the token to what is sent to `url`. */
async function startProxy(url, token) {
  const { hostname, port } = new URL(url);
  const proxy = http.createServer((request, response) => {
    const { method, url: path, rawHeaders } = request;
    const headers = [...rawHeaders, "Authorization", `Bearer ${token}`];
    const forwarded = http.request({ hostname, port, method, path, headers }, (answer) => {
      response.writeHead(answer.statusCode, answer.rawHeaders);
      response.flushHeaders();
      answer.pipe(response);
    });
    forwarded.on("error", () => response.destroy());
    response.on("close", () => forwarded.destroy());
    request.pipe(forwarded);
  });
  proxy.listen(0, "127.0.0.1");
  await once(proxy, "listening");
  return proxy;
}

/** One run of the suite; what it says about each scenario. */
async function run(what, url, { suite, name, options }) {
  const expected = join(expectations, `${what}-${suite}.yaml`);
  const parameters = ["server", "--url", url, "--suite", "all", "--expected-failures", expected, ...options];
  const program = join(suites, suite, "dist", "index.js");
  const limits = { maxBuffer: 64 * 1024 * 1024, timeout: 600_000 };
  const outcome = await promisify(execFile)(process.execPath, [program, ...parameters], limits).catch((error) => error);
  const summary = outcome.stdout.slice(outcome.stdout.indexOf("=== SUMMARY ==="));
  const passed = summary.match(/^✓ /gm)?.length ?? 0;
  const failed = summary.match(/^✗ /gm)?.length ?? 0;
  // One that is ended by a signal, as at the time limit, has no code.
  const well = (outcome.code ?? 0) === 0 && !outcome.signal && passed > 0;
  console.log(`${well ? "ok     " : "FAILED "} ${what}, suite ${name}: ${passed} scenarios pass, ${failed} fail`);
  if (!well) {
    console.log(outcome.stdout + outcome.stderr);
  }
  return { passed, well };
}

async function runAll(what, url, token) {
  const proxy = await startProxy(url, token);
  const at = `http://localhost:${proxy.address().port}/mcp`;
  let passed = 0;
  let failed = 0;
  for (const each of RUNS) {
    const outcome = await run(what, at, each);
    passed += outcome.passed;
    failed += outcome.well ? 0 : 1;
  }
  proxy.close();
  proxy.closeAllConnections();
  console.log(`${passed} passed, ${failed} failed`);
  process.exitCode = failed === 0 ? 0 : 1;
}

const [what, url, token] = process.argv.slice(2);
if (what === "program") {
  const directory = await mkdtemp(join(tmpdir(), "mcp-forge-conformance-"));
  const { server, url, token } = await startProgram(directory);
  try {
    await runAll(what, url, token);
    server.kill("SIGTERM");
    const [code] = await once(server, "exit");
    assert.equal(code, 0, "the server ends well");
  } finally {
    server.kill("SIGKILL");
    await rm(directory, { recursive: true, force: true });
  }
} else {
  assert.equal(what, "fixture", "program, or fixture URL TOKEN");
  await runAll(what, url, token);
}
