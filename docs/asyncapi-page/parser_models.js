// What the page needs of @asyncapi/parser: its models, not its validator, which is two thirds of the size.
export { isAsyncAPIDocument, isOldAsyncAPIDocument, isStringifiedDocument, toAsyncAPIDocument } from "@asyncapi/parser/esm/document";
export { unstringify } from "@asyncapi/parser/esm/stringify";
export { SchemaV2 } from "@asyncapi/parser/esm/models";
