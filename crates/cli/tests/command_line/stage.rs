//! A stage: servers, a folder, and helpers that run dlock there.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io::{PipeReader, PipeWriter, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::unix::process::ExitStatusExt;
use std::path::PathBuf;
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU16, AtomicU32, Ordering};
use std::thread;

use dlock_testkit::queue;
use dlock_testkit::{Conn, Folder, Server, ServerKind, Value, until, until_some};

/// The command under test.
pub const DLOCK: &str = env!("CARGO_BIN_EXE_dlock");

/// One lock service, and the folder in which commands run.
pub struct Stage {
    pub servers: Vec<Server>,
    /// The address of a cluster or of sentinels, in place of those of the servers.
    address: Option<String>,
    folder: Folder,
}

impl Stage {
    pub fn with(kind: &ServerKind, servers: usize) -> Stage {
        Stage {
            servers: (0..servers).map(|_| Server::start(kind)).collect(),
            address: None,
            folder: Folder::fresh(),
        }
    }

    /// Makes a stage of these servers, which dlock finds by this address.
    pub fn at(servers: Vec<Server>, address: String) -> Stage {
        Stage { servers, address: Some(address), folder: Folder::fresh() }
    }

    pub fn one(kind: &ServerKind) -> Stage {
        Stage::with(kind, 1)
    }

    /// A connection to the first server.
    pub fn connect(&self) -> Conn {
        self.servers[0].connect()
    }

    pub fn urls(&self) -> String {
        if let Some(address) = &self.address {
            return address.clone();
        }
        let urls: Vec<String> =
            self.servers.iter().map(|server| format!("redis://127.0.0.1:{}", server.port())).collect();
        urls.join(",")
    }

    /// Any program, in the folder. Of dlock's variables, it gets only DLOCK, DLOCK_SERVERS and
    /// DLOCK_NODE_TIMEOUT. That timeout is long, so that a slow server does not count as silent. All signals
    /// have their default action: tests that a shell has started in the background ignore SIGINT, and the
    /// program would inherit this.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new("env");
        command.arg("--default-signal").arg(program);
        for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("DLOCK_")) {
            command.env_remove(name);
        }
        command.env("DLOCK_SERVERS", self.urls()).env("DLOCK_NODE_TIMEOUT", "10s").env("DLOCK", DLOCK);
        command.current_dir(self.folder.path()).stdin(Stdio::null());
        command
    }

    /// A shell script, in which "$DLOCK" is the path of dlock.
    pub fn shell(&self, script: &str) -> Command {
        let mut shell = self.command("sh");
        shell.args(["-c", script]);
        shell
    }

    /// `dlock` with arguments that are separated by blanks.
    pub fn dlock(&self, words: &str) -> Command {
        let mut dlock = self.command(DLOCK);
        dlock.args(words.split_whitespace());
        dlock
    }

    /// `dlock run` of a shell script under the lock `r`, with these options.
    pub fn run(&self, options: &str, script: &str) -> Command {
        let mut run = self.dlock(&format!("run {options} r -- sh -c"));
        run.arg(script);
        run
    }

    /// The contents of a file of the folder, empty if it does not exist.
    pub fn file(&self, name: &str) -> String {
        fs::read_to_string(self.folder.path().join(name)).unwrap_or_default()
    }

    pub fn write(&self, name: &str, text: &str) -> PathBuf {
        let path = self.folder.path().join(name);
        fs::write(&path, text).expect("a file");
        path
    }

    /// Waits until a file ends with a whole line, and returns its lines.
    #[track_caller]
    pub fn lines(&self, name: &str) -> Vec<String> {
        let text = until_some(&format!("there is a line in the file {name}"), || {
            Some(self.file(name)).filter(|text| text.ends_with('\n'))
        });
        text.lines().map(str::to_owned).collect()
    }

    /// Waits until a file ends with a whole line.
    #[track_caller]
    pub fn until_written(&self, name: &str) {
        self.lines(name);
    }

    /// Waits until a program has written a process id into a file, and returns it.
    #[track_caller]
    pub fn process_id(&self, name: &str) -> u32 {
        self.lines(name)[0].parse().expect("a process id")
    }

    /// Starts a command. Its output goes into files, so that a process that it leaves behind holds no pipe
    /// open.
    pub fn start(&self, mut command: Command) -> Running {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let (out, err) = (format!("out-{number}"), format!("err-{number}"));
        let file = |name: &str| File::create(self.folder.path().join(name)).expect("a file");
        let child = command.stdout(file(&out)).stderr(file(&err)).spawn();
        let child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        Running { child, out: self.folder.path().join(out), err: self.folder.path().join(err) }
    }

    /// Starts a command and waits for its end.
    #[track_caller]
    pub fn execute(&self, command: Command) -> Done {
        self.start(command).wait()
    }

    /// Creates the file `go`, for which the program under `dlock run` waits, and waits for the end of `run`.
    #[track_caller]
    pub fn create_go_and_wait(&self, run: Running) -> Done {
        self.write("go", "");
        run.wait()
    }

    /// Sends a command to each server.
    #[track_caller]
    pub fn on_each(&self, command: &str) {
        for server in &self.servers {
            server.connect().ok(command);
        }
    }

    /// Waits until this many clients wait for a resource, on all servers together.
    #[track_caller]
    pub fn until_waiting(&self, resource: &str, count: usize) {
        until(&format!("{count} clients wait for {resource}"), || {
            let waiting = |server: &Server| queue::tokens(&mut server.connect(), resource).len();
            self.servers.iter().map(waiting).sum::<usize>() == count
        });
    }

    /// Returns the number of servers on which the hold has this fence. The client needs only a majority. So a
    /// server that grants later may not have the hold yet, or may have its own fence for it. Fails the test
    /// if a hold has another token or label.
    #[track_caller]
    pub fn count_confirmed(&self, resource: &str, token: &str, fence: &str, label: &str) -> usize {
        let locks =
            self.servers.iter().map(|server| server.connect().ok(&format!("DLOCK.INSPECT {resource}")));
        let has_fence = |lock: &Value| {
            let hold = &lock.field("holders").items()[0];
            assert_eq!((hold.field("token"), hold.field("label")), (&token.into(), &label.into()));
            hold.field("fence").int().to_string() == fence
        };
        locks.filter(|lock| !lock.is_nil() && has_fence(lock)).count()
    }

    /// The number of live servers on which the resource is held.
    #[track_caller]
    pub fn held_on(&self, resource: &str) -> usize {
        let living = self.servers.iter().filter(|server| server.is_alive());
        living.filter(|server| !queue::holders(&mut server.connect(), resource).is_empty()).count()
    }
}

/// Waits until the lease of a resource is renewed.
#[track_caller]
pub fn until_renewed(conn: &mut Conn, resource: &str) {
    let mut left = i64::MAX;
    until("the lease grows", || {
        let before = std::mem::replace(&mut left, conn.ok(&format!("DLOCK.PTTL {resource}")).int());
        left > before
    });
}

/// An address that can lead to another server. Open connections stay where they are.
pub struct Address {
    port: u16,
    leads_to: Arc<AtomicU16>,
}

impl Address {
    pub fn of(server: &Server) -> Address {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let port = listener.local_addr().expect("an address").port();
        let leads_to = Arc::new(AtomicU16::new(server.port()));
        let target = leads_to.clone();
        thread::spawn(move || {
            for client in listener.incoming().map_while(Result::ok) {
                let server = TcpStream::connect(("127.0.0.1", target.load(Ordering::SeqCst)));
                let Ok(server) = server else { continue };
                let cloned = |socket: &TcpStream| socket.try_clone().expect("a socket");
                for (mut from, mut to) in [(cloned(&client), cloned(&server)), (server, client)] {
                    thread::spawn(move || {
                        let _ = std::io::copy(&mut from, &mut to);
                        let _ = to.shutdown(Shutdown::Both);
                    });
                }
            }
        });
        Address { port, leads_to }
    }

    pub fn url(&self) -> String {
        format!("redis://127.0.0.1:{}", self.port)
    }

    pub fn lead_new_connections_to(&self, server: &Server) {
        self.leads_to.store(server.port(), Ordering::SeqCst);
    }
}

/// A script that runs `script`. Its standard output is a pipe that has no reader. Opening a FIFO for writing
/// waits for a reader, so a subshell opens the FIFO for reading, and ends at once.
pub fn with_closed_pipe_as_stdout(script: &str) -> String {
    format!("mkfifo unread; (exec 3<unread) & exec 4>unread; wait; rm unread; {script} >&4")
}

/// A pipe whose buffer is full.
pub fn full_pipe() -> (PipeReader, PipeWriter) {
    let (reader, mut writer) = std::io::pipe().expect("a pipe");
    writer.write_all(&[b'.'; 65_536]).expect("the pipe has room");
    (reader, writer)
}

/// A running process. It is killed when it is dropped.
pub struct Running {
    child: Child,
    out: PathBuf,
    err: PathBuf,
}

/// The exit status and the output of a process.
#[derive(Debug)]
pub struct Done {
    pub code: Option<i32>,
    pub signal: Option<i32>,
    pub stdout: String,
    pub stderr: String,
}

impl Running {
    pub fn id(&self) -> u32 {
        self.child.id()
    }

    /// The standard input of a process that was started with a pipe.
    #[track_caller]
    pub fn take_stdin(&mut self) -> ChildStdin {
        self.child.stdin.take().expect("a pipe")
    }

    pub fn stdout(&self) -> String {
        fs::read_to_string(&self.out).expect("the output of the command")
    }

    pub fn stdout_bytes(&self) -> Vec<u8> {
        fs::read(&self.out).expect("the output of the command")
    }

    pub fn stderr(&self) -> String {
        fs::read_to_string(&self.err).expect("the output of the command")
    }

    #[track_caller]
    pub fn signal(&self, name: &str) {
        signal(self.id(), name);
    }

    pub fn has_ended(&mut self) -> bool {
        self.child.try_wait().expect("the state of a child").is_some()
    }

    /// Waits until the process has ended.
    #[track_caller]
    pub fn wait(mut self) -> Done {
        let err = self.err.clone();
        let status = until_some(&format!("the process ends; stderr: {:?}", fs::read_to_string(err)), || {
            self.child.try_wait().expect("the state of a child")
        });
        let (stdout, stderr) = (self.stdout(), self.stderr());
        Done { code: status.code(), signal: status.signal(), stdout, stderr }
    }
}

impl Done {
    /// Fails the test unless standard error contains these words.
    #[track_caller]
    pub fn assert_stderr(&self, words: &str) {
        assert!(self.stderr.contains(words), "{}", self.stderr);
    }

    /// Fails the test unless standard error begins with these words.
    #[track_caller]
    pub fn assert_stderr_starts(&self, words: &str) {
        assert!(self.stderr.starts_with(words), "{}", self.stderr);
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a signal to a process.
#[track_caller]
pub fn signal(process: u32, name: &str) {
    let status = Command::new("sh").args(["-c", &format!("kill -{name} {process}")]).status();
    assert!(status.expect("sh runs").success(), "SIG{name} could not be sent to {process}");
}

/// A field of /proc/PROCESS/status. `None` if the process does not exist.
pub fn status(process: u32, field: &str) -> Option<String> {
    let text = fs::read_to_string(format!("/proc/{process}/status")).ok()?;
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'))?;
    Some(line.trim().to_owned())
}

/// Returns whether a process exists and is not a zombie.
pub fn is_alive(process: u32) -> bool {
    status(process, "State").is_some_and(|state| !state.starts_with(['Z', 'X']))
}

pub fn is_stopped(process: u32) -> bool {
    status(process, "State").is_some_and(|state| state.starts_with('T'))
}
