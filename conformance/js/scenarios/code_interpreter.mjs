// The code interpreter package: code that keeps its state, gives results, and can be stopped.

import { check, equal, proves, raises } from '../harness.mjs'

const create = (t, options) => t.create({ through: t.interpreter.Sandbox, ...options })

proves(['code.run'], 'code.run', async (t) => {
  const box = await create(t, { envs: { WHO: 'sandbox' } })
  const printed = []
  const code = "import sys\nx = 41\nprint('ü\\u2028')\nprint('oops', file=sys.stderr)\nx + 1"
  const ran = await box.runCode(code, { onStdout: (line) => printed.push(line.line) })
  equal([ran.text, ran.executionCount, ran.error], ['42', 1, undefined], 'the last value')
  equal([printed.join(''), ran.logs.stdout.join(''), ran.logs.stderr.join('')], ['ü\u2028\n', 'ü\u2028\n', 'oops\n'], 'what was printed')
  const failed = await box.runCode('print(x)\n1 / 0')
  equal([failed.error.name, failed.error.value, failed.logs.stdout], ['ZeroDivisionError', 'division by zero', ['41\n']], 'the error')
  const rich = "class R:\n  def _repr_html_(self): return '<b>x</b>'\n  def _repr_png_(self): return b'\\x89PNG'\nR()"
  const [result] = (await box.runCode(rich)).results
  equal([result.html, result.png, result.isMainResult], ['<b>x</b>', 'iVBORw==', true], 'its other forms')
  const env = "import os\nos.environ['WHO'], os.environ.get('ONCE')"
  equal((await box.runCode(env, { envs: { ONCE: 'run' } })).text, "('sandbox', 'run')", 'its own variables')
  equal((await box.runCode(env)).text, "('sandbox', None)", 'without them')
}, { quick: true, deadline: 60 })

proves(['code.languages'], 'code.languages', async (t) => {
  const box = await create(t)
  await box.runCode('const a = 40; let b = 2', { language: 'js' })
  equal((await box.runCode('a + b', { language: 'javascript' })).text, '42', 'JavaScript keeps its state')
  equal((await box.runCode('cd /usr; x=5; pwd', { language: 'bash' })).logs.stdout.join(''), '/usr\n', 'bash')
  await raises(t.interpreter.SandboxError, box.runCode('1', { language: 'cobol' }))
}, { deadline: 60 })

proves(['code.contexts'], 'code.contexts', async (t) => {
  const box = await create(t)
  const context = await box.createCodeContext({ cwd: '/usr', language: 'python' })
  equal([context.cwd, context.language], ['/usr', 'python'], 'the new context')
  await box.runCode('x = 1', { context })
  equal((await box.runCode('x')).error.name, 'NameError', 'contexts are apart')
  check((await box.listCodeContexts()).some((row) => row.id === context.id), 'it is listed')
  await box.restartCodeContext(context)
  equal((await box.runCode('x', { context })).error.name, 'NameError', 'after a restart')
  await box.removeCodeContext(context)
  await raises(t.interpreter.NotFoundError, box.runCode('1', { context }))
}, { deadline: 60 })

proves(['code.timeout'], 'code.timeout', async (t) => {
  const box = await create(t)
  await box.runCode('x = 1')
  await raises(t.interpreter.TimeoutError, box.runCode('import time\nwhile True: time.sleep(1)', { timeoutMs: 1000 }))
  equal((await box.runCode('x', { timeoutMs: 20_000 })).text, '1', 'after it was stopped')
}, { deadline: 60 })
