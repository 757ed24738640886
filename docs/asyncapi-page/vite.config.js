import { fileURLToPath } from "node:url";
import { defineConfig } from "vite";

const here = (name) => fileURLToPath(new URL(name, import.meta.url));

// What the component offers no setting for: the fields of a message are shown without a click, and what is sent is not
// "accepted".
const WORDING = {
  "containers/Messages/Message.js": [
    ['schemaName: "Payload", schema: payload', 'schemaName: "Fields", schema: payload, expanded: Boolean(messageName)'],
  ],
  "components/Schema/Schema.js": [["setExpanded(deepExpand);", "setExpanded(deepExpand || propExpanded);"]],
  "containers/Operations/Operation.js": [
    ['"Accepts the following message:"', '"Message:"'],
    ['schemaName: "Parameters", schema: parameters, expanded: true', 'schemaName: "Parameters", schema: parameters'],
  ],
};

const wording = {
  name: "wording",
  transform(code, id) {
    const file = Object.keys(WORDING).find((name) => id.endsWith(`/lib/esm/${name}`));
    if (file === undefined) return null;
    for (const [before, after] of WORDING[file]) {
      if (!code.includes(before)) throw new Error(`${file} no longer contains ${before}`);
      code = code.replaceAll(before, after);
    }
    return { code, map: null };
  },
};

export default defineConfig({
  plugins: [wording],
  define: { "process.env.NODE_ENV": '"production"' },
  resolve: {
    alias: [
      { find: /^@asyncapi\/parser(\/cjs\/document)?$/, replacement: here("parser_models.js") },
      { find: /^(@asyncapi\/specs|@stoplight\/.*|\.\/parser|\.\/ServersList)$/, replacement: here("nothing.js") },
    ],
  },
  build: {
    target: "es2022",
    license: { fileName: "licences.md" },
    // "use client" of a module means nothing here.
    rollupOptions: { onwarn: (warning, tell) => warning.code === "MODULE_LEVEL_DIRECTIVE" || tell(warning) },
    lib: { entry: "main.js", formats: ["iife"], name: "page", fileName: () => "page.js" },
  },
});
