//! Runs the scenarios of `conformance/*.json`, which define the commands, on real servers in RESP2 and RESP3,
//! and on the masters of a cluster. `conformance/README.md` defines the format;
//! `clients/python/tests/test_conformance.py` runs the same files.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::{Duration, Instant};
use std::{fs, mem};

use dlock_testkit::cluster::{EQUAL_SLOTS, cluster_with, owner};
use dlock_testkit::{Conn, Server, ServerKind, Value, each_server, project, until};
use serde_json::{Value as Json, json};

#[each_server]
fn every_scenario_runs_on_every_server(kind: &ServerKind) {
    let scenarios = scenarios();
    let server = Server::start(kind);
    let help = server.connect().ok("DLOCK.HELP");
    // The first line is a heading, and the indented lines explain the form above them.
    for form in help.items()[1..].iter().map(Value::text).filter(|line| line.starts_with("DLOCK.")) {
        let command = form.split(' ').next().expect("a name");
        let has_it = |scenario: &Json| scenario.to_string().contains(command);
        assert!(scenarios.values().any(has_it), "no scenario has {command}");
    }
    for (name, scenario) in &scenarios {
        run_in_each_protocol(&server, scenario, name);
    }
}

/// Each scenario runs on the master that has its slot. The keys of a scenario with several keys get a hash
/// tag, so that they have one slot.
#[each_server]
fn every_scenario_runs_on_a_master_of_a_cluster(kind: &ServerKind) {
    // No node is down in this test, but the machine may stall.
    let nodes = cluster_with(kind, EQUAL_SLOTS, &["cluster-node-timeout 60000"]);
    let mut used = BTreeSet::new();
    for (name, mut scenario) in scenarios() {
        // A cluster has only one database.
        if name == "databases" {
            continue;
        }
        scenario["steps"].as_array_mut().expect("steps").retain(|step| step["why"] != "outside a cluster");
        let keys = keys_of(&scenario, &mut nodes[0].connect());
        let tag = format!("{{{name}}}");
        let (scenario, key) = match keys.first() {
            Some(key) if keys.len() == 1 => (scenario, key.clone()),
            Some(_) => (tagged(&scenario, &keys, &tag), tag),
            None => panic!("{name}: no command has a key"),
        };
        let master = owner(&nodes, &key);
        used.insert(master.port());
        run_in_each_protocol(master, &scenario, &format!("{name}, in a cluster"));
    }
    assert_eq!(used.len(), 3, "the scenarios run on every master");
}

/// Returns the scenarios by the names of their files.
fn scenarios() -> BTreeMap<String, Json> {
    let files = fs::read_dir(project().join("conformance")).expect("the folder can be read");
    let files = files.map(|entry| entry.expect("a file").path());
    let files = files.filter(|path| path.extension().is_some_and(|extension| extension == "json"));
    let read = |file: std::path::PathBuf| {
        let name = file.file_stem().expect("a name").to_string_lossy().into_owned();
        let text = fs::read_to_string(&file).expect("it is text");
        let scenario = serde_json::from_str(&text).unwrap_or_else(|why| panic!("{name}: {why}"));
        (name, scenario)
    };
    files.map(read).collect()
}

/// Returns the keys of all commands of a scenario.
fn keys_of(scenario: &Json, conn: &mut Conn) -> BTreeSet<String> {
    let mut keys = BTreeSet::new();
    for command in scenario["steps"].as_array().expect("steps").iter().filter_map(|step| step.get("send")) {
        let mut question: Vec<String> = ["COMMAND", "GETKEYS"].map(String::from).to_vec();
        question.extend(words(command).map(String::from));
        // An error means that the command has no keys, or that its form is wrong.
        if let Value::Array(found) = conn.call(&question) {
            keys.extend(found.iter().map(Value::text));
        }
    }
    keys
}

/// Returns the scenario with this tag behind each word that is one of the keys, or the channel of its events.
fn tagged(scenario: &Json, keys: &BTreeSet<String>, tag: &str) -> Json {
    let with_tag = |word: &str| {
        let name = word.strip_prefix("__keyspace@0__:").unwrap_or(word);
        format!("{word}{}", if keys.contains(name) { tag } else { "" })
    };
    fn in_reply(wanted: &Json, with_tag: &impl Fn(&str) -> String) -> Json {
        match wanted {
            Json::String(text) => json!(with_tag(text)),
            Json::Array(parts) => parts.iter().map(|part| in_reply(part, with_tag)).collect(),
            Json::Object(parts) => {
                parts.iter().map(|(name, part)| (name.clone(), in_reply(part, with_tag))).collect()
            }
            other => other.clone(),
        }
    }
    let mut scenario = scenario.clone();
    for step in scenario["steps"].as_array_mut().expect("steps") {
        let step = step.as_object_mut().expect("a step is an object");
        if let Some(command) = step.get_mut("send") {
            *command = words(command).map(with_tag).collect();
        }
        for reply in ["answer", "until"] {
            if let Some(wanted) = step.get_mut(reply) {
                *wanted = in_reply(wanted, &with_tag);
            }
        }
    }
    scenario
}

fn words(command: &Json) -> Box<dyn Iterator<Item = &str> + '_> {
    match command {
        Json::String(text) => Box::new(text.split(' ')),
        words => {
            let words = words.as_array().expect("a text or an array of arguments").iter();
            Box::new(words.map(|word| word.as_str().expect("text")))
        }
    }
}

fn run_in_each_protocol(server: &Server, scenario: &Json, name: &str) {
    let only = scenario["protocols"].as_array();
    for protocol in [2, 3].into_iter().filter(|p| only.is_none_or(|only| only.contains(&json!(p)))) {
        run_scenario(server, scenario, protocol, &format!("{name} in RESP{protocol}"));
    }
}

fn run_scenario(server: &Server, scenario: &Json, protocol: u8, title: &str) {
    let mut control = server.connect();
    let mut former_values = Vec::new();
    for (option, value) in scenario["options"].as_object().into_iter().flatten() {
        let before = control.ok(&format!("CONFIG GET {option}")).field(option).text();
        control.ok(&format!("CONFIG SET {option} {}", value.as_str().expect("an option's text")));
        former_values.push((option, before));
    }
    let mut run = Run::new(server, protocol);
    for (at, step) in scenario["steps"].as_array().expect("steps").iter().enumerate() {
        run.step(step, &format!("{title}, step {}: {step}", at + 1));
    }
    drop(run);
    until("no lock is left", || {
        // FLUSHALL grants a lock to a client that is still queued, so several FLUSHALLs may be needed.
        control.ok("FLUSHALL");
        control.ok("DLOCK.LIST 0").items()[1].items().is_empty()
    });
    for (option, before) in former_values {
        // Not `ok`: it splits the command at spaces, and so would drop an empty value.
        assert_eq!(control.call(&["CONFIG", "SET", option, &before]), "OK");
    }
}

/// The state of a scenario that runs.
struct Run<'a> {
    server: &'a Server,
    protocol: u8,
    connections: HashMap<String, Conn>,
    /// Saved values by name, as text.
    saved: HashMap<String, String>,
    /// Time just before each step that has a `mark`, by the name of the mark.
    marks: HashMap<String, Instant>,
    greatest_fence: i64,
}

impl<'a> Run<'a> {
    fn new(server: &'a Server, protocol: u8) -> Run<'a> {
        let (connections, saved, marks) = Default::default();
        Run { server, protocol, connections, saved, marks, greatest_fence: 0 }
    }

    #[allow(clippy::disallowed_methods, reason = "a client measures by its own clock")]
    fn step(&mut self, step: &Json, title: &str) {
        let known = ["on", "send", "answer", "until", "lose", "mark", "after", "close", "why"];
        let words = step.as_object().expect("a step is an object");
        assert!(words.keys().all(|word| known.contains(&word.as_str())), "{title}: an unknown field");
        let on = step["on"].as_str().unwrap_or("a").to_string();
        if let Some(mark) = step["mark"].as_str() {
            self.marks.insert(mark.into(), Instant::now());
        }
        let command = words.get("send").map(|command| self.command(command));
        if let Some(command) = &command {
            self.connection(&on).send(command);
        }
        // The reply is read but not used, and its connection is closed below.
        if words.contains_key("lose") {
            self.connection(&on).read();
        }
        if let Some(wanted) = words.get("answer") {
            let found = self.connection(&on).read();
            assert!(self.matches(wanted, &found), "{title}: found {found:?}");
        }
        if let Some(wanted) = words.get("until") {
            until(title, || {
                let found = self.connection(&on).read();
                self.matches(wanted, &found) || {
                    self.connection(&on).send(command.as_ref().expect("a command to repeat"));
                    false
                }
            });
        }
        for (mark, least) in step["after"].as_object().into_iter().flatten() {
            let least = Duration::from_millis(least.as_u64().expect("ms"));
            assert!(self.marks[mark].elapsed() >= least, "{title}: the reply is too early");
        }
        if step["close"] == true || words.contains_key("lose") {
            self.connections.remove(&on);
        }
    }

    fn connection(&mut self, name: &str) -> &mut Conn {
        self.connections.entry(name.into()).or_insert_with(|| {
            let mut conn = self.server.connect();
            if self.protocol == 3 {
                conn.hello3();
            }
            conn
        })
    }

    fn command(&self, command: &Json) -> Vec<String> {
        words(command).map(|word| self.with_saved_values(word)).collect()
    }

    /// Replaces each name in braces with its saved value.
    fn with_saved_values(&self, text: &str) -> String {
        let replace =
            |text: String, (name, value): (&String, &String)| text.replace(&format!("{{{name}}}"), value);
        self.saved.iter().fold(text.to_string(), replace)
    }

    fn matches(&mut self, wanted: &Json, found: &Value) -> bool {
        match wanted {
            Json::Null => found.is_nil(),
            Json::Bool(_) => panic!("no reply is true or false"),
            Json::Number(wanted) => *found == wanted.as_i64().expect("a whole number"),
            Json::String(wanted) => *found == self.with_saved_values(wanted),
            Json::Array(wanted) => match found {
                Value::Array(items) | Value::Push(items) if items.len() == wanted.len() => {
                    wanted.iter().zip(items).all(|(wanted, item)| self.matches(wanted, item))
                }
                _ => false,
            },
            Json::Object(words) => words.iter().all(|(word, part)| self.matches_word(word, part, found)),
        }
    }

    fn matches_word(&mut self, word: &str, wanted: &Json, found: &Value) -> bool {
        let number = || wanted.as_i64().expect("a whole number");
        match (word, found) {
            ("any", _) => true,
            ("error", Value::Error(line)) => line.split(' ').next() == wanted.as_str(),
            ("least", Value::Int(n)) => *n >= number(),
            ("most", Value::Int(n)) => *n <= number(),
            ("length", Value::Bulk(bytes)) => bytes.len() as i64 == number(),
            ("save", Value::Int(n)) => self.save(wanted, n.to_string()),
            ("save", Value::Bulk(_)) => self.save(wanted, found.text()),
            ("fence", Value::Int(n)) => match self.saved.get(wanted.as_str().expect("a name")) {
                Some(known) => *known == n.to_string(),
                None => mem::replace(&mut self.greatest_fence, *n) < *n && self.save(wanted, n.to_string()),
            },
            ("map", Value::Array(_) | Value::Map(_)) => {
                let named = wanted.as_object().expect("fields by their names");
                matches!(found, Value::Map(_)) == (self.protocol == 3)
                    && named.iter().all(|(name, wanted)| self.matches(wanted, found.field(name)))
            }
            ("error" | "least" | "most" | "length" | "save" | "fence" | "map", _) => false,
            _ => panic!("{word} is not a pattern"),
        }
    }

    fn save(&mut self, name: &Json, value: String) -> bool {
        self.saved.insert(name.as_str().expect("a name").into(), value);
        true
    }
}
