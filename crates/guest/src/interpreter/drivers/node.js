// Runs cells of JavaScript for the guest, one after the other, in one global scope.
//
// Cells come as lines of JSON on descriptor 3: {code, env}. Answers go as lines of JSON to descriptor 4: results and
// errors, then {"type": "done"}. What the cells print goes where it always goes.
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

// Straight to the kernel: an interruption in the middle of node's own streams leaves them waiting for ever.
for (const [descriptor, stream] of [[1, process.stdout], [2, process.stderr]]) {
  stream.write = (chunk, encoding, written) => {
    write(descriptor, typeof chunk === 'string' ? Buffer.from(chunk, typeof encoding === 'string' ? encoding : 'utf8') : chunk);
    const done = typeof encoding === 'function' ? encoding : written;
    if (done) process.nextTick(done);
    return true;
  };
}

function answer(message) {
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
    } catch { /* It is not made of plain values. */ }
  }
  found.text ??= typeof value === 'string' ? value : inspect(value);
  return found;
}

// A cell is no module: its imports become awaited ones.
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
// Declared only for people at a prompt.
for (const name of ['_', '_error']) Object.defineProperty(inner.context, name, { configurable: true, writable: true, value: undefined });

globalThis.display = async (...values) => {
  for (const value of values) answer({ type: 'result', is_main_result: false, ...(await formats(value)) });
};

// Of code that goes on after its cell: told, and nothing ends.
const later = (error) => console.error(error);
process.on('uncaughtException', later);
process.on('unhandledRejection', later);

let interrupt = () => {};
process.on('SIGINT', () => interrupt());

// What a cell throws comes out of the prompt's domain, not of its call.
let thrown = later;
inner._domain.removeAllListeners('error');
inner._domain.on('error', (error) => thrown(error));

// Imports of a cell are found from the directory it runs in.
const importModuleDynamically = vm.constants?.USE_MAIN_CONTEXT_DEFAULT_LOADER;

function compile(code) {
  const options = { filename: 'cell', importModuleDynamically };
  // What looks like a block is more often meant as an object.
  if (/^\s*\{/.test(code) && !/;\s*$/.test(code)) {
    try {
      return new vm.Script(`(${code})`, options);
    } catch { /* It is a block. */ }
  }
  return new vm.Script(code, options);
}

// The value in a list, since a promise that a cell gives is shown and not awaited.
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

// Only the prompt knows how to wait at the top of a script.
function evaluateAwaiting(code) {
  return new Promise((resolve, reject) => {
    interrupt = () => reject(new Error('interrupted'));
    const fail = (error) => reject(error instanceof repl.Recoverable ? error.err : error);
    thrown = fail;
    inner.eval(`${code}\n`, inner.context, 'cell', (error, value) => (error ? fail(error) : resolve([value])));
  });
}

function told(error) {
  if (!(error instanceof Error)) return { name: 'Error', value: inspect(error), traceback: inspect(error) };
  // From the cell on: what called it is ours.
  const lines = (error.stack ?? String(error)).split('\n');
  const own = lines.findIndex((line) => /\bat .*(node:(internal\/)?(vm|repl)|\[eval\])/.test(line));
  return { name: error.name, value: error.message, traceback: lines.slice(0, own < 0 ? undefined : own).join('\n') };
}

async function run({ code, env }) {
  const before = Object.fromEntries(Object.keys(env).map((name) => [name, process.env[name]]));
  Object.assign(process.env, env);
  try {
    const [value] = await evaluate(code);
    if (value !== undefined) answer({ type: 'result', is_main_result: true, ...(await formats(value)) });
  } catch (error) {
    answer({ type: 'error', ...told(error) });
  }
  interrupt = () => {};
  thrown = later;
  for (const [name, value] of Object.entries(before)) {
    if (value === undefined) delete process.env[name];
    else process.env[name] = value;
  }
  answer({ type: 'done' });
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
