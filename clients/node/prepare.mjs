// Builds the package. npm runs this script when it installs from a folder. The compiler may not be installed yet.
import { spawnSync } from "node:child_process";
import { copyFileSync, existsSync } from "node:fs";

const root = new URL(".", import.meta.url);

function npm(...args) {
  // Leaves out the settings of the calling npm, which may install globally or into another folder. Keeps only the
  // setting npm_config_cache, the folder of npm's cache.
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

// The package contains its licences.
for (const text of ["LICENSE-APACHE", "LICENSE-MIT"]) {
  const licence = new URL(`../../${text}`, root);
  if (existsSync(licence)) copyFileSync(licence, new URL(text, root));
}
