//! Hostile input: damaged files, users without rights, requests that fill the memory, and attempts to read
//! the tokens of other clients.

mod background;
mod files;
mod guarded;
mod memory;
mod modules;
mod tokens;
mod users;

use dlock_testkit::Value;

/// Builds a call of each command and subcommand in `info`, a reply to COMMAND. Each call has the required
/// number of arguments plus `more`. The arguments repeat `fill`.
fn calls(info: &Value, fill: &[&str], more: usize) -> Vec<Vec<String>> {
    let mut calls = Vec::new();
    for command in info.items() {
        let [name, arity, .., subcommands] = command.items() else { panic!("{command:?}") };
        if !subcommands.items().is_empty() {
            calls.extend(self::calls(subcommands, fill, more));
            continue;
        }
        let mut words: Vec<String> = name.text().split('|').map(String::from).collect();
        let wanted = words.len().max(arity.int().unsigned_abs() as usize) + more;
        let fill = fill.iter().cycle().take(wanted - words.len());
        words.extend(fill.map(|word| word.to_string()));
        calls.push(words);
    }
    calls
}
