//! Crowds of one size, and the operations on them. Each returns what the server spent.

use super::*;

/// As many crowds as there are keys, on their server.
pub struct Crowd {
    pub server: Server,
    conn: Conn,
    kind: Kind,
    /// The numbers of the members by key; of waiters in the order of the queue.
    members: Vec<Vec<usize>>,
    /// Of each queue the one that it waits for.
    holders: Vec<usize>,
    /// How many members there have been.
    known: usize,
}

/// A command, by the key and the number of the member that sends it.
type Asked = Vec<(usize, Vec<u8>)>;

impl Crowd {
    pub fn start(run: &Run, kind: Kind, number: usize) -> Result<Crowd> {
        let server = run.program.start(true, &[])?;
        let mut conn = server.connect()?;
        for limit in ["dlock.max-queued", "dlock.max-waiters-per-key", "dlock.max-holders-per-key"] {
            conn.call(&["CONFIG", "SET", limit, "1000000"])?;
        }
        let keys = if number <= SMALL { BATCH } else { 1 };
        let mut crowd =
            Crowd { server, conn, kind, members: vec![Vec::new(); keys], holders: Vec::new(), known: 0 };
        if kind == Kind::Queued {
            // Whoever comes first holds the lock at once.
            crowd.holders = crowd.newcomers(keys);
            let asked = crowd.of_each(&crowd.holders.clone(), |crowd, member| crowd.acquire(member, &[]));
            crowd.send(&asked, is_fence)?;
        }
        while crowd.members[0].len() < number {
            crowd.join_some((number - crowd.members[0].len()).min(BATCH) * keys)?;
        }
        Ok(crowd)
    }

    fn newcomers(&mut self, number: usize) -> Vec<usize> {
        self.known += number;
        (self.known - number..self.known).collect()
    }

    /// The keys take turns.
    fn key(&self, nth: usize) -> usize {
        nth % self.members.len()
    }

    fn of_each(&self, members: &[usize], command: impl Fn(&Crowd, usize) -> Command) -> Asked {
        let each = members.iter().enumerate();
        each.map(|(nth, member)| (self.key(nth), command(self, *member).on_key(self.key(nth) as u64)))
            .collect()
    }

    fn acquire(&self, member: usize, more: &[&str]) -> Command {
        let token = token(member);
        let mode: &[&str] = match self.kind {
            Kind::Sharers => &["SHARED"],
            Kind::Permits => &["PERMITS", "1000000"],
            Kind::Queued => &["QUEUE", KEPT],
        };
        Command::new(&[&["DLOCK.ACQUIRE", KEY, &token, TTL], mode, more].concat())
    }

    /// A newcomer is granted the lock, or joins its queue.
    fn is_in(&self) -> fn(&Value) -> bool {
        if self.kind == Kind::Queued { Value::is_nil } else { is_fence }
    }

    /// Sends all in one write.
    fn send(&mut self, asked: &Asked, expected: fn(&Value) -> bool) -> Result<()> {
        let bytes: Vec<u8> = asked.iter().flat_map(|(_, command)| command).copied().collect();
        self.conn.send(&bytes)?;
        for _ in asked {
            let value = self.conn.value()?;
            if !expected(&value) {
                return Err(strange(&format!("{value:?}")));
            }
        }
        Ok(())
    }

    fn spent(&mut self, asked: &Asked, expected: fn(&Value) -> bool) -> Result<Spent> {
        let meter = Meter::start(&self.server);
        self.send(asked, expected)?;
        sleep(REST);
        Ok(meter.end(&self.server, asked.len()))
    }

    fn join_some(&mut self, number: usize) -> Result<Spent> {
        let joining = self.newcomers(number);
        let asked = self.of_each(&joining, |crowd, member| crowd.acquire(member, &[]));
        for ((key, _), member) in asked.iter().zip(joining) {
            self.members[*key].push(member);
        }
        self.spent(&asked, self.is_in())
    }

    pub fn join(&mut self) -> Result<Spent> {
        // Those who are passed the lock, and those who are cancelled.
        self.join_some(if self.kind == Kind::Queued { 2 * BATCH } else { BATCH })
    }

    /// Anybody of a batch of crowds, each once.
    fn any(&self) -> Vec<usize> {
        let any = |key: usize| {
            let members = &self.members[key];
            members[random_range(0..members.len())]
        };
        (0..BATCH).map(|nth| any(self.key(nth))).collect()
    }

    /// A command of any member.
    pub fn each(&mut self, name: &str, more: &[&str], expected: fn(&Value) -> bool) -> Result<Spent> {
        let command = |_: &Crowd, member| Command::new(&[&[name, KEY, &token(member)], more].concat());
        let asked = self.of_each(&self.any(), command);
        self.spent(&asked, expected)
    }

    /// The ACQUIRE of any waiter once more.
    pub fn keep(&mut self) -> Result<Spent> {
        let asked = self.of_each(&self.any(), |crowd, member| crowd.acquire(member, &[]));
        self.spent(&asked, Value::is_nil)
    }

    /// A page of who is there.
    pub fn look(&mut self, name: &str) -> Result<Spent> {
        let asked = self.of_each(&[0; BATCH], |_, _| Command::new(&[name, KEY, "COUNT", PAGE]));
        self.spent(&asked, |value| !value.is_nil() && !matches!(value, Value::Error(_)))
    }

    /// Any member leaves.
    pub fn leave(&mut self, name: &str) -> Result<Spent> {
        let mut leaving = Vec::new();
        for nth in 0..BATCH {
            let key = self.key(nth);
            let members = &mut self.members[key];
            leaving.push(members.remove(random_range(0..members.len())));
        }
        let asked = self.of_each(&leaving, |_, member| Command::new(&[name, KEY, &token(member)]));
        self.spent(&asked, is_one)
    }

    /// The holder releases, and the head of the queue claims the lock.
    pub fn pass_on(&mut self) -> Result<Spent> {
        let mut asked = Vec::new();
        for nth in 0..BATCH {
            let key = self.key(nth);
            let next = self.members[key].remove(0);
            let holder = std::mem::replace(&mut self.holders[key], next);
            let release = Command::new(&["DLOCK.RELEASE", KEY, &token(holder)]);
            asked.push((key, release.on_key(key as u64)));
            asked.push((key, self.acquire(next, &[]).on_key(key as u64)));
        }
        let spent = self.spent(&asked, |value| is_one(value) || is_fence(value))?;
        Ok(Spent { operations: BATCH, ..spent })
    }

    /// Connections close to which a member is bound that came last.
    pub fn disconnect(&mut self) -> Result<Spent> {
        let (mut bound, is_in) = (Vec::new(), self.is_in());
        for member in self.newcomers(CLOSED) {
            let mut conn = self.server.connect()?;
            let key = self.key(bound.len()) as u64;
            conn.send(&self.acquire(member, &["EPHEMERAL"]).on_key(key))?;
            let value = conn.value()?;
            if !is_in(&value) {
                return Err(strange(&format!("{value:?}")));
            }
            bound.push(conn);
        }
        sleep(REST);
        let meter = Meter::start(&self.server);
        for conn in bound {
            drop(conn);
            sleep(REST);
        }
        Ok(meter.end(&self.server, CLOSED))
    }

    /// What the server spends while nothing happens.
    pub fn idle(&self) -> Spent {
        let meter = Meter::start(&self.server);
        sleep(IDLE);
        meter.end(&self.server, 1)
    }
}

fn token(number: usize) -> String {
    format!("5f0a7c19d2e8{number:08}")
}
