import { defineConfig } from "vite";

// Names without digests, so that a rebuild of the same sources changes nothing in the repository; the server says no-store.
export default defineConfig({
  base: "/",
  build: {
    target: "es2022",
    modulePreload: false,
    assetsInlineLimit: 0,
    rollupOptions: {
      input: { index: "index.html", decode: "src/decode.ts" },
      preserveEntrySignatures: "strict",
      output: {
        entryFileNames: "assets/[name].js",
        chunkFileNames: "assets/[name].js",
        assetFileNames: "assets/[name][extname]",
      },
    },
  },
});
