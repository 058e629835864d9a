// Runs cells of JavaScript for the guest, one after the other, in one global scope.
//
// Reads cells as JSON lines from descriptor 3: {code, env}. Writes results and errors as JSON lines
// to descriptor 4, then {"type": "done"}. Output of the cells goes to stdout and stderr.
'use strict';
const fs = require('node:fs');
const net = require('node:net');
const repl = require('node:repl');
const { PassThrough } = require('node:stream');
const { inspect } = require('node:util');
const module_ = require('node:module');
const vm = require('node:vm');

const typed = process.argv[1] === 'typescript';
const names = {
  'text/plain': 'text', 'text/html': 'html', 'text/markdown': 'markdown', 'image/svg+xml': 'svg', 'image/png': 'png',
  'image/jpeg': 'jpeg', 'application/pdf': 'pdf', 'text/latex': 'latex', 'application/json': 'json',
  'application/javascript': 'javascript',
};

function write(descriptor, bytes) {
  while (bytes.length) {
    try {
      bytes = bytes.subarray(fs.writeSync(descriptor, bytes));
    } catch (error) {
      if (error.code !== 'EAGAIN') throw error;
    }
  }
}

// Writes directly: an interrupt in the middle of node's own streams leaves them blocked forever.
for (const [descriptor, stream] of [[1, process.stdout], [2, process.stderr]]) {
  stream.write = (chunk, encoding, written) => {
    write(descriptor, typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : chunk);
    const done = typeof encoding === 'function' ? encoding : written;
    if (done) process.nextTick(done);
    return true;
  };
}

function respond(message) {
  write(4, Buffer.from(`${JSON.stringify(message)}\n`));
}

async function formats(value) {
  const found = {};
  const shown = value?.[Symbol.for('Jupyter.display')];
  if (typeof shown === 'function') {
    for (const [mime, content] of Object.entries(await shown.call(value))) {
      if (names[mime]) found[names[mime]] = content;
      else (found.extra ??= {})[mime] = content;
    }
  } else if (value !== null && typeof value === 'object') {
    try {
      if (Array.isArray(value) || Object.getPrototypeOf(value)?.constructor?.name === 'Object') {
        found.json = JSON.parse(JSON.stringify(value));
      }
    } catch { /* Not serializable. */ }
  }
  found.text ??= typeof value === 'string' ? value : inspect(value);
  return found;
}

// A cell is not a module: its static imports become awaited dynamic ones.
function withoutImports(code) {
  const bindings = (list) => `{${list.replace(/\bas\b/g, ':')}}`;
  return code.replace(
    /^[ \t]*import\s+(?:([\w$]+)\s*,?\s*)?(?:\*\s*as\s+([\w$]+)\s*|\{([^}]*)\}\s*)?(?:from\s*)?(['"])([^'"]+)\4[ \t]*;?/gm,
    (_, plain, all, named, quote, from) => {
      const load = `await import(${quote}${from}${quote})`;
      const parts = [];
      if (all) parts.push(`var ${all} = ${load};`);
      if (plain) parts.push(`var {default: ${plain}} = ${load};`);
      if (named !== undefined) parts.push(`var ${bindings(named)} = ${load};`);
      return parts.join(' ') || `${load};`;
    },
  );
}

function plainScript(code) {
  if (!typed) return withoutImports(code);
  if (!module_.stripTypeScriptTypes) {
    throw new Error(`the sandbox's node ${process.version} does not know TypeScript; 22.13 and later do`);
  }
  return withoutImports(module_.stripTypeScriptTypes(code));
}

const inner = repl.start({
  prompt: '', input: new PassThrough(), output: new PassThrough().resume(), terminal: false, useGlobal: true,
  preview: false,
});
// Declared only for interactive use.
for (const name of ['_', '_error']) Object.defineProperty(inner.context, name, { configurable: true, writable: true, value: undefined });

globalThis.display = async (...values) => {
  for (const value of values) respond({ type: 'result', is_main_result: false, ...(await formats(value)) });
};

// Errors of code that continues after its cell are reported and end nothing.
const later = (error) => console.error(error);
process.on('uncaughtException', later);
process.on('unhandledRejection', later);

let interrupt = () => {};
process.on('SIGINT', () => interrupt());

// The REPL's domain emits what a cell throws; its call does not.
let thrown = later;
inner._domain.removeAllListeners('error');
inner._domain.on('error', (error) => thrown(error));

// Imports of a cell resolve from its working directory.
const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER;

function compile(code) {
  const options = { filename: 'cell', importModuleDynamically };
  // Ambiguous braces are parsed as an object first.
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
    try {
      return new vm.Script(`(${code})`, options);
    } catch { /* A block. */ }
  }
  return new vm.Script(code, options);
}

// Wraps the value in a list, because a promise returned by a cell is shown and not awaited.
function evaluate(cell) {
  const code = plainScript(cell);
  let script;
  try {
    script = compile(code);
  } catch (error) {
    if (!/\bawait\b/.test(code)) throw error;
    return evaluateAwaiting(code);
  }
  return [script.runInThisContext({ breakOnSigint: true, displayErrors: false })];
}

// Only the REPL supports top-level await in a script.
function evaluateAwaiting(code) {
  return new Promise((resolve, reject) => {
    interrupt = () => reject(new Error('interrupted'));
    const fail = (error) => reject(error instanceof repl.Recoverable ? error.err : error);
    thrown = fail;
    inner.eval(`${code}\n`, inner.context, 'cell', (error, value) => (error ? fail(error) : resolve([value])));
  });
}

function formatError(error) {
  if (!(error instanceof Error)) return { name: 'Error', value: inspect(error), traceback: inspect(error) };
  // From the cell's own frames on: the callers belong to this driver.
  const lines = (error.stack ?? String(error)).split('\n');
  const own = lines.findIndex((line) => /\bat .*(node:(internal\/)?(vm|repl)|\[eval\])/.test(line));
  return { name: error.name, value: error.message, traceback: lines.slice(0, own < 0 ? undefined : own).join('\n') };
}

async function run({ code, env }) {
  const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
  Object.assign(process.env, env);
  try {
    const [value] = await evaluate(code);
    if (value !== undefined) respond({ type: 'result', is_main_result: true, ...(await formats(value)) });
  } catch (error) {
    respond({ type: 'error', ...formatError(error) });
  }
  interrupt = () => {};
  thrown = later;
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  respond({ type: 'done' });
}

let waiting = Buffer.alloc(0);
let running = Promise.resolve();
const cells = new net.Socket({ fd: 3, readable: true, writable: false });
cells.on('data', (chunk) => {
  waiting = Buffer.concat([waiting, chunk]);
  for (let end = waiting.indexOf(10); end >= 0; end = waiting.indexOf(10)) {
    const cell = JSON.parse(waiting.subarray(0, end));
    waiting = waiting.subarray(end + 1);
    running = running.then(() => run(cell));
  }
});
cells.on('end', () => process.exit());
