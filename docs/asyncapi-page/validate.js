// Say what the AsyncAPI parser finds wrong with the document that is named, hints included; fail unless it is valid.
import { readFile } from "node:fs/promises";
import { Parser } from "@asyncapi/parser";

const { document, diagnostics } = await new Parser().parse(await readFile(process.argv[2], "utf8"));
for (const found of diagnostics) console.log(`${found.code}: ${found.message} (${found.path.join(".")})`);
process.exitCode = document === undefined ? 1 : 0;
