// Drives the built binary with the MCP Inspector's command line and with the TypeScript SDK.
//
// Environment: FORGE_TEST_BINARY (the server), FORGE_TEST_TOOLS (directory made by `cargo xtask
// test`). Run it with the Node.js of that directory: Inspector needs 22.19 or newer.

import assert from "node:assert/strict";
import { execFile, spawn } from "node:child_process";
import { once } from "node:events";
import { mkdtemp, mkdir, rm, writeFile } from "node:fs/promises";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { createInterface } from "node:readline";
import { pathToFileURL } from "node:url";
import { promisify } from "node:util";

const binary = process.env.FORGE_TEST_BINARY;
const modules = join(process.env.FORGE_TEST_TOOLS, "npm", "node_modules");
const directory = await mkdtemp(join(tmpdir(), "mcp-forge-node-"));
const allowed = join(directory, "allowed");
const environment = { MCP_FORGE_DATA_DIR: join(directory, "data"), PATH: process.env.PATH, HOME: directory };

let passed = 0;
let failed = 0;

async function check(name, body) {
  const started = Date.now();
  const took = () => `${((Date.now() - started) / 1000).toFixed(1)} s`;
  try {
    await body();
    passed += 1;
    console.log(`ok      ${name} (${took()})`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED  ${name} (${took()})\n        ${String(error.stack).replaceAll("\n", "\n        ")}`);
  }
}

async function main() {
  await mkdir(allowed);
  await writeFile(join(allowed, "hello.txt"), "hello from a file\n");
  const upstreams = {
    filesystem: { command: join(modules, ".bin", "mcp-server-filesystem"), args: [allowed] },
    everything: { command: join(modules, ".bin", "mcp-server-everything"), args: ["stdio"] },
  };
  // JSON is YAML too.
  const config = join(directory, "mcp-forge.yaml");
  await writeFile(config, JSON.stringify({ mcp_tools: upstreams }));
  const server = { command: binary, args: ["serve", "--config", config], env: environment };
  await writeFile(join(directory, "inspector.json"), JSON.stringify({ mcpServers: { forge: server } }));

  // 70 s of mostly waiting: beside the others.
  const longTurn = check("a turn of 70 s survives the default timeout of the TypeScript SDK", () => checkLongTurn(server));
  for (const era of ["legacy", "modern"]) {
    await check(`Inspector (${era}): tools/list, schemas portable`, () => checkToolsList(era));
    await check(`Inspector (${era}): tools/call execute_python`, () => checkToolsCall(era));
    await check(`Inspector (${era}): resources/list`, () => checkResourcesList(era));
    await check(`Inspector (${era}): resources/read`, () => checkResourcesRead(era));
  }
  await check("Inspector: a tool of an upstream is called by the code", checkUpstream);
  await check("Inspector: a bad call is refused", checkRefusal);
  const served = await serve(config);
  try {
    for (const sdk of SDKS) {
      const name = `TypeScript SDK over HTTP, ${sdk.speaks}: tools, turns, progress, a session, a resource, a goodbye`;
      await check(name, () => checkOverHttp(served, sdk));
    }
    await check("Inspector over HTTP: tools and a resource, in both eras", () => checkInspectorOverHttp(served));
  } finally {
    served.server.kill("SIGTERM");
    await once(served.server, "exit");
  }
  await longTurn;
}

async function checkToolsList(era) {
  const { tools } = await inspect(era, ["--method", "tools/list", "--strict"]);
  const tool = tools.find((candidate) => candidate.name === "execute_python");
  assert.deepEqual(tool.inputSchema.required, ["code"]);
  assert.ok(tool.outputSchema.properties.result, JSON.stringify(tool.outputSchema));
}

async function checkToolsCall(era) {
  const result = await execute(era, { code: "print('hello')\nsum(range(10))" });
  assert.equal(result.structuredContent.result, 45);
  assert.equal(result.structuredContent.stdout, "hello\n");
  assert.equal(result.content[0].type, "text");
}

async function checkResourcesList(era) {
  const { resources } = await inspect(era, ["--method", "resources/list"]);
  const uris = resources.map((resource) => resource.uri);
  for (const name of ["tools/available", "environment/info", "audit/operations"]) {
    assert.ok(uris.includes(`mcp://forge/${name}`), uris.join(" "));
  }
}

async function checkResourcesRead(era) {
  await hasUpstream(() => inspect(era, ["--method", "resources/read", "--uri", "mcp://forge/tools/available"]));
}

/** Reads the list of tools until the upstream's is there: one that takes long to start is left out at first. */
async function hasUpstream(read) {
  const deadline = Date.now() + 180_000;
  for (;;) {
    const { contents } = await read();
    if (JSON.parse(contents[0].text).includes("filesystem_read_text_file")) {
      return;
    }
    assert.ok(Date.now() < deadline, contents[0].text);
  }
}

async function checkUpstream() {
  const path = join(allowed, "hello.txt");
  const code = `filesystem_read_text_file(path=${JSON.stringify(path)})`;
  const result = await execute("legacy", { code, mcp_tools: ["filesystem_read_text_file"] });
  assert.equal(result.structuredContent.result, "hello from a file\n");
}

async function checkRefusal() {
  const result = await execute("legacy", { code: "1", mcp_tools: ["nope_read"] });
  assert.equal(result.isError, true);
  assert.match(result.content[0].text, /nope_read/);
}

function execute(era, parameters) {
  const call = ["--method", "tools/call", "--tool-name", "execute_python"];
  return inspect(era, [...call, "--tool-args-json", JSON.stringify(parameters)]);
}

/** One run of Inspector's command line; its exit status is 0, or 5 when the tool answered with an error. */
async function inspect(era, parameters) {
  const inspector = join(modules, ".bin", "mcp-inspector");
  const target = ["--cli", "--quiet", "--protocol-era", era, "--config", join(directory, "inspector.json"), "--server", "forge"];
  const options = {
    env: { ...environment, MCP_INSPECTOR_SECRET_STORE: "memory" },
    maxBuffer: 64 * 1024 * 1024,
    timeout: 300_000,
  };
  const outcome = await promisify(execFile)(process.execPath, [inspector, ...target, ...parameters], options).catch((error) => error);
  try {
    return JSON.parse(outcome.stdout);
  } catch {
    throw new Error(`Inspector printed no JSON (status ${outcome.code ?? 0}): ${outcome.stdout}\n${outcome.stderr}`);
  }
}

async function checkLongTurn(server) {
  const { Client } = await load("@modelcontextprotocol/sdk/dist/esm/client/index.js");
  const { StdioClientTransport } = await load("@modelcontextprotocol/sdk/dist/esm/client/stdio.js");
  const client = new Client({ name: "long-turn", version: "1" });
  await client.connect(new StdioClientTransport({ ...server, stderr: "ignore" }));
  const code = "import time\nfor number in range(7):\n    print('step', number, flush=True)\n    time.sleep(10)\nnumber";
  const messages = [];
  // The timeout is the SDK's own default, 60 s; only progress starts it anew.
  const options = { resetTimeoutOnProgress: true, onprogress: ({ message }) => messages.push(message ?? "") };
  const call = { name: "execute_python", arguments: { code } };
  try {
    const result = await client.callTool(call, undefined, options);
    assert.equal(result.structuredContent.result, 6);
    assert.ok(messages.length >= 6, `${messages.length} progress notifications`);
  } finally {
    await client.close();
  }
}

/** The same binary over HTTP: where it listens, and the token that its first start prints. */
async function serve(config) {
  const options = ["serve", "--config", config, "--http", "127.0.0.1:0", "--data-dir", join(directory, "http-data")];
  const server = spawn(binary, options, { env: environment, stdio: ["ignore", "ignore", "pipe"] });
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

/** One SDK for each version of the protocol, which is the newest that it speaks. */
const SDKS = [
  ...Object.entries({ "2025-06-18": "sdk-2025-06-18", "2025-11-25": "@modelcontextprotocol/sdk" }).map(
    ([speaks, name]) => ({
      speaks,
      client: `${name}/dist/esm/client/index.js`,
      transport: `${name}/dist/esm/client/streamableHttp.js`,
      options: {},
    }),
  ),
  {
    speaks: "2026-07-28",
    client: "@modelcontextprotocol/client/dist/index.mjs",
    transport: "@modelcontextprotocol/client/dist/index.mjs",
    options: { versionNegotiation: { mode: "auto" } },
  },
];

async function checkOverHttp({ url, token }, { speaks, client: clientModule, transport: transportModule, options }) {
  const { Client } = await load(clientModule);
  const { StreamableHTTPClientTransport } = await load(transportModule);
  const transport = new StreamableHTTPClientTransport(new URL(url), {
    requestInit: { headers: { Authorization: `Bearer ${token}` } },
  });
  const client = new Client({ name: "over-http", version: "1" }, options);
  await client.connect(transport);
  try {
    assert.equal(client.getNegotiatedProtocolVersion?.() ?? transport.protocolVersion, speaks);
    const { tools } = await client.listTools();
    assert.ok(tools.some((tool) => tool.name === "execute_python"));
    const run = (code, ...more) =>
      client.callTool({ name: "execute_python", arguments: { code, session_id: `node-${speaks}` } }, ...more);
    await run("x = 41");
    assert.equal((await run("x + 1")).structuredContent.result, 42);
    const messages = [];
    const slow = "import time\nfor step in range(3):\n    print('step', step, flush=True)\n    time.sleep(3)";
    const told = { onprogress: ({ message }) => messages.push(message) };
    // Older ones have another parameter before these.
    await run(slow, ...(speaks === "2026-07-28" ? [told] : [undefined, told]));
    assert.ok(messages.some((message) => message?.includes("step 1")), JSON.stringify(messages));
    await hasUpstream(() => client.readResource({ uri: "mcp://forge/tools/available" }));
    // 2026-07-28 has none.
    if (transport.sessionId) {
      await transport.terminateSession();
    }
  } finally {
    await client.close();
  }
}

async function checkInspectorOverHttp({ url, token }) {
  const forge = { type: "streamable-http", url, headers: { Authorization: `Bearer ${token}` } };
  await writeFile(join(directory, "inspector.json"), JSON.stringify({ mcpServers: { forge } }));
  for (const era of ["legacy", "modern"]) {
    const result = await execute(era, { code: "6 * 7" });
    assert.equal(result.structuredContent.result, 42, era);
    await checkToolsList(era);
    await checkResourcesRead(era);
  }
}

function load(path) {
  return import(pathToFileURL(join(modules, path)));
}

try {
  await main();
} finally {
  await rm(directory, { recursive: true, force: true });
}
console.log(`${passed} passed, ${failed} failed`);
process.exitCode = failed === 0 && passed > 0 ? 0 : 1;
