// Print every throttled container: npm ci && node print_throttled.js
import { readFileSync } from "node:fs";
import { connect, nkeyAuthenticator } from "nats";
import { decode, rows } from "./decode.js";
import * as subjects from "./subjects.js";

const { NATS_URL = "nats://127.0.0.1:4222", NATS_CA, NATS_NKEY } = process.env;
const options = { servers: NATS_URL };
// The host is given for a certificate of an IP address: nats passes on names only, and Node would check "localhost".
if (NATS_CA) options.tls = { caFile: NATS_CA, host: new URL(NATS_URL).hostname };
if (NATS_NKEY) options.authenticator = nkeyAuthenticator(new TextEncoder().encode(readFileSync(NATS_NKEY, "utf8").trim()));
const connection = await connect(options);
const batches = connection.subscribe(subjects.cfsBatch());
await connection.flush();
console.log("subscribed");
for await (const received of batches) {
  const batch = decode(received.data);
  for (const row of rows(batch)) {
    // Known at the throttling's end: after an early report, in the next sample.
    if (row.throttled_us) console.log(batch.app, batch.node, row.container, `${row.throttled_us} us`);
  }
}
