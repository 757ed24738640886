// Shows the AsyncAPI document that the page carries in #document. It asks the network for nothing.
import { createAsyncAPIDocument } from "@asyncapi/parser/esm/document";
import { anonymousNaming } from "@asyncapi/parser/esm/custom-operations/anonymous-naming";
import { applyUniqueIds } from "@asyncapi/parser/esm/custom-operations/apply-unique-ids";
import { createDetailedAsyncAPI } from "@asyncapi/parser/esm/utils";
import AsyncApi from "@asyncapi/react-component/lib/esm/without-parser";
import { createElement } from "react";
import { createRoot } from "react-dom/client";

// What a reference within the document names: the very object, as the parser does it, or a copy with the words that stand
// beside the reference. A reference may lead to another one.
function target(node, root) {
  if (typeof node?.$ref !== "string") return node;
  const { $ref, ...words } = node;
  const found = $ref.replace("#/", "").split("/").reduce((at, part) => target(at[part], root), root);
  if (Object.keys(words).length === 0) return found;
  if (words.description && found.enum) words.description += `\n\n${found.description}`;
  return { ...found, ...words };
}

function dereference(node, root, seen = new Set()) {
  if (node === null || typeof node !== "object" || seen.has(node)) return;
  seen.add(node);
  for (const key of Object.keys(node)) {
    node[key] = target(node[key], root);
    dereference(node[key], root, seen);
  }
}

// A payload is a message's own fields and the two that the codec adds: shown as one object.
function flatten(payload) {
  return {
    ...payload.allOf[0],
    properties: Object.assign({}, ...payload.allOf.map((part) => part.properties)),
    required: payload.allOf.flatMap((part) => part.required ?? []),
  };
}

const source = JSON.parse(document.getElementById("document").textContent);
dereference(source, source);
applyUniqueIds(source);
for (const message of Object.values(source.components.messages)) message.payload = flatten(message.payload);
const api = createAsyncAPIDocument(createDetailedAsyncAPI(source, source));
anonymousNaming(api);

const config = {
  show: { sidebar: true, schemas: false, messageExamples: true },
  sidebar: { showOperations: "byOperationsTags", showServers: "byDefault" },
};
createRoot(document.getElementById("page")).render(createElement(AsyncApi, { schema: api, config }));
