// Makes docs/plan.md, the reference of a plan's operations, from the comments in csrc/exec.c:
// `bun scripts/plan-doc.ts > docs/plan.md`. A test compares the two.

import { readFileSync } from "node:fs";
import { join } from "node:path";

const INTRODUCTION = `# Operations of a plan

A model is a flat list of these operations over registers, float32 matrices with a row a step token or a row an output.
\`caldrix debug plan MODEL\` prints one. The binary form is in csrc/caldrix.h; csrc/plan.c proves every operand before the
first run. i0..i3 are the record's integers, f0..f3 its floats. Made from the comments in csrc/exec.c by scripts/plan-doc.ts.
`;

/** The text of docs/plan.md. @param source csrc/exec.c */
export function planDoc(source: string): string {
  const comments = source.matchAll(/^ {4}\/\*\n {5}\* op: (\w+)\n([\s\S]*?)^ {5}\*\/$/gm);
  const sections = Array.from(comments, ([, name, body]) => {
    const lines = body!.split("\n").map((line) => line.replace(/^ {5}\* ?/, ""));
    const takes = lines.findIndex((line) => line.startsWith("takes: "));
    const formula = lines.slice(0, takes).join("\n    ");
    const notesAt = lines.findIndex((line, i) => i > takes && !line.startsWith("  "));
    const fields = lines.slice(takes, notesAt).map((line) => line.trim());
    const notes = lines.slice(notesAt).join(" ").trim();
    const operands = fields.join(" ").replace("takes: ", "Takes ");
    return `## ${name}\n\n    ${formula}\n\n${operands}.${notes === "" ? "" : `\n\n${notes}`}\n`;
  });
  return [INTRODUCTION, ...sections].join("\n");
}

if (import.meta.main) {
  const source = readFileSync(join(import.meta.dir, "../csrc/exec.c"), "utf8");
  process.stdout.write(planDoc(source));
}
