// A conversation through memjs, which speaks the binary protocol: `memjs.js HOST:PORT [USER PASSWORD]`.
// It ends with code 1 and a message at the first answer that is not memcached's.
'use strict';

const assert = require('node:assert/strict');
const memjs = require('memjs');

const LARGE_BYTES = 1_000_000;
const EXPIRY_WAIT_MS = 20_000;
const [address, username, password] = process.argv.slice(2);
const quiet = { log() {} };
const client = memjs.Client.create(address, { username, password, timeout: 10, retries: 0, logger: quiet });

async function read(key) {
  const { value } = await client.get(key);
  return value && value.toString();
}

async function storage() {
  assert.equal(await read('absent'), null);
  assert.equal(await client.set('k', 'v\r\n\0', {}), true);
  assert.equal(await read('k'), 'v\r\n\0');
  assert.equal(await client.add('k', 'x', {}), false, 'add of what is there');
  assert.equal(await client.add('added', 'x', {}), true);
  assert.equal(await client.replace('absent', 'x', {}), false, 'replace of what is absent');
  assert.equal(await client.replace('k', 'x', {}), true);
  assert.equal(await client.append('k', 'y'), true);
  assert.equal(await client.prepend('k', 'w'), true);
  await assert.rejects(client.append('absent', 'y'), /Item not stored/, 'append to what is absent');
  // memjs 1.3.2 sends append's opcode for prepend.
  assert.equal(await read('k'), 'xyw');
  assert.equal(await client.delete('k'), true);
  assert.equal(await client.delete('k'), false, 'delete again');
  assert.equal(await read('k'), null);
}

async function pipelined() {
  const keys = Array.from({ length: 300 }, (_, index) => `many:${index}`);
  await Promise.all(keys.map((key) => client.set(key, `value of ${key}`, {})));
  assert.deepEqual(await Promise.all(keys.map(read)), keys.map((key) => `value of ${key}`));
}

async function counters() {
  assert.deepEqual(await client.increment('n', 5, { initial: 10 }), { success: true, value: 10 });
  assert.deepEqual(await client.increment('n', 5, { initial: 10 }), { success: true, value: 15 });
  assert.deepEqual(await client.decrement('n', 20, {}), { success: true, value: 0 });
  await client.set('word', 'x', {});
  await assert.rejects(client.increment('word', 1, {}), 'increment of a word');
}

async function lifetimes() {
  assert.equal(await client.touch('n', 100), true);
  assert.equal(await client.touch('absent', 100), false, 'touch of what is absent');
  assert.equal(await client.set('brief', 'x', { expires: 1 }), true);
  const deadline = Date.now() + EXPIRY_WAIT_MS;
  while ((await read('brief')) !== null) assert.ok(Date.now() < deadline, 'an item expires');
}

async function sizes() {
  const large = Buffer.alloc(LARGE_BYTES, 'x');
  assert.equal(await client.set('large', large, {}), true);
  assert.ok(large.equals((await client.get('large')).value), 'a large value comes back');
}

function statistics() {
  return new Promise((resolve, reject) => {
    client.stats((error, _server, told) => (error ? reject(error) : resolve(told)));
  });
}

async function main() {
  await storage();
  await pipelined();
  await counters();
  await lifetimes();
  await sizes();
  const told = await statistics();
  assert.equal(told.threads, '2');
  assert.match(told.version, /^\d+\.\d+\.\d+/);
  await client.flush();
  assert.equal(await read('many:1'), null, 'flush');
}

main().then(
  () => client.close(),
  (error) => {
    console.error(`memjs: ${error.stack}`);
    process.exit(1);
  },
);
