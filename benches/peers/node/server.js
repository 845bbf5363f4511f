// A receiver as a good engineer writes it by hand in a day, with fastify and pg: `node server.js <database url> <connections>`.
// It prints `listening <port>`, and ends when its standard input does.

import { createHmac, timingSafeEqual } from 'node:crypto';
import fastify from 'fastify';
import pg from 'pg';

const SECRET = process.env.SECRET;
// Older or newer signatures are refused.
const TOLERANCE_S = 300;

const [url, connections] = process.argv.slice(2);
const pool = new pg.Pool({ connectionString: url, max: Number(connections) });
const app = fastify({ logger: false, bodyLimit: 1 << 21 });

// The signature is over the body as it came.
app.addContentTypeParser('application/json', { parseAs: 'buffer' }, (_request, body, done) => done(null, body));

// `t=<unix s>,v1=<hex>` over `<t>.<body>`.
function verified(header, body) {
  if (typeof header !== 'string') return false;
  const parts = Object.fromEntries(header.split(',').map((part) => part.trim().split('=', 2)));
  if (!parts.t || !parts.v1 || !(Math.abs(Date.now() / 1000 - Number(parts.t)) <= TOLERANCE_S)) return false;
  const expected = createHmac('sha256', SECRET).update(`${parts.t}.`).update(body).digest();
  const signature = Buffer.from(parts.v1, 'hex');
  return signature.length === expected.length && timingSafeEqual(signature, expected);
}

app.post('/', async (request, reply) => {
  if (!verified(request.headers['x-kudos-signature'], request.body)) return reply.code(401).send();
  const event = JSON.parse(request.body);
  const client = await pool.connect();
  let broken;
  try {
    await client.query('BEGIN');
    // Named, so that they are prepared once on each connection.
    const inserted = await client.query({
      name: 'inbox',
      text: 'INSERT INTO inbox (source, event_id) VALUES ($1, $2) ON CONFLICT DO NOTHING',
      values: ['crm', event.event_id],
    });
    if (inserted.rowCount === 0) {
      await client.query('ROLLBACK');
      return reply.code(200).send();
    }
    await client.query({
      name: 'effect',
      text: 'INSERT INTO effect (event_id, account, amount) VALUES ($1, $2, $3)',
      values: [event.event_id, event.data.account, event.data.amount],
    });
    await client.query('COMMIT');
    return reply.code(204).send();
  } catch (error) {
    broken = error;
    throw error;
  } finally {
    // With an error it is closed: nobody knows what state its transaction is in.
    client.release(broken);
  }
});

process.stdin.resume();
process.stdin.on('end', () => process.exit(0));
await app.listen({ host: '127.0.0.1', port: 0 });
console.log(`listening ${app.server.address().port}`);
