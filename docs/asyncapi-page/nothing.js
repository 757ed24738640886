// Stands for what the page does not use: the parser's validator, the component's parsing, the list of our one server.
export class Document {}
export class Parser {}
export const DiagnosticSeverity = {};
export const ServersList = () => null;
export default { schemas: {} };
