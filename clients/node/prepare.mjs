// Builds the package. npm runs this when it installs from a folder, and then has not always installed the
// compiler.
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync } from "node:fs";

const root = new URL(".", import.meta.url);

function npm(...args) {
  // Not the settings of the installation that runs this, which may be a global one or one of another folder.
  const env = Object.entries(process.env).filter(
    ([name]) => !/^npm_/i.test(name) || name === "npm_config_cache",
  );
  const done = spawnSync("npm", args, {
    cwd: root,
    env: Object.fromEntries(env),
    stdio: "inherit",
    shell: true,
  });
  if (done.status !== 0) process.exit(done.status ?? 1);
}

if (!existsSync(new URL("node_modules/typescript", root)))
  npm("ci", "--ignore-scripts", "--no-audit", "--no-fund");
npm("run", "build");

// The package says under which terms it comes.
for (const text of ["LICENSE-APACHE", "LICENSE-MIT"]) {
  const ofProject = new URL(`../../${text}`, root);
  if (existsSync(ofProject)) copyFileSync(ofProject, new URL(text, root));
}
