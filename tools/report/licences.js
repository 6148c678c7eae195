// THIRD_PARTY.md: what the bundle contains, with versions and licences, from the installed packages.

import { readFileSync, readdirSync } from "node:fs";

const meta = JSON.parse(readFileSync("node_modules/bundle.json", "utf8"));
const used = [...new Set(Object.keys(meta.inputs).filter((path) => path.startsWith("node_modules/"))
  .map((path) => path.split("/")[1]))].sort();
console.log("# Third-party code in report.js\n\nWritten by `tools/build_report.sh`.\n");
for (const name of used) {
  const folder = `node_modules/${name}`;
  const about = JSON.parse(readFileSync(`${folder}/package.json`, "utf8"));
  const file = readdirSync(folder).find((one) => /^licen[cs]e/i.test(one));
  console.log(`## ${name} ${about.version} (${about.license})\n\n\`\`\`text\n${readFileSync(`${folder}/${file}`, "utf8").trim()}\n\`\`\`\n`);
}
