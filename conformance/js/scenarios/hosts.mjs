// Requests to services of a sandbox: the host name they see, and services with TLS.

import { equal, proves, until } from '../harness.mjs'

const SERVER = (module, options) => `require('node:${module}').createServer(${options}(request, response) => response.end(request.headers.host)).listen(8000, '127.0.0.1')`

async function serve(t, box, program) {
  await box.files.write('server.cjs', program)
  await box.commands.run('exec node server.cjs', { background: true, timeoutMs: 0 })
  await until(async () => (await t.port(box, 8000)).status === 200, 15, 'the server in the sandbox answers')
}

proves(['ports.masked'], 'hosts.masked', async (t) => {
  const box = await t.create({ network: { maskRequestHost: '${PORT}-app.test' } })
  await serve(t, box, SERVER('http', ''))
  equal((await t.port(box, 8000)).text, '8000-app.test', 'what the service sees')
})

proves(['ports.https'], 'hosts.https_ports', async (t) => {
  const box = await t.create({ network: { httpsPorts: [8000] } })
  await box.commands.run('openssl req -x509 -newkey rsa:2048 -nodes -days 2 -subj /CN=x -keyout key.pem -out cert.pem')
  const files = "{ key: require('fs').readFileSync('key.pem'), cert: require('fs').readFileSync('cert.pem') }, "
  await serve(t, box, SERVER('https', files))
  equal((await t.port(box, 8000)).status, 200, 'it answers through the edge')
  equal((await box.getInfo()).network.httpsPorts, [8000], 'the configured ports are reported')
})
