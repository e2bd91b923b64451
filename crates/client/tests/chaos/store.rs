//! The protected resource: a store that checks fences, and a server that gets the same writes by
//! `DLOCK.FENCED`. `accepted` is the decision of the store, `passed` that of the server.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use crate::record::Write;
use dlock_testkit::{Conn, Server, Value};

/// Accepts writes in order, and refuses those with a fence lower than an earlier one.
pub struct Store(Mutex<Inner>);

struct Inner {
    resources: HashMap<String, ResourceState>,
    log: Vec<Write>,
    /// Connection to the server that gets the same writes in the same order, by `DLOCK.FENCED`.
    fenced: Conn,
}

/// State of one resource.
#[derive(Default)]
struct ResourceState {
    greatest: i64,
    /// Number of writes that the server accepted.
    passed: i64,
}

impl Store {
    /// `fenced` is a server without faults.
    pub fn new(fenced: &Server) -> Store {
        let mut fenced = fenced.connect();
        fenced.ok("FLUSHALL");
        Store(Mutex::new(Inner { resources: HashMap::new(), log: Vec::new(), fenced }))
    }

    /// Writes once. Returns whether the store accepted the write.
    pub fn append(&self, resource: &str, fence: i64, hold: &str) -> bool {
        let Inner { resources, log, fenced } = &mut *self.lock();
        let state = resources.entry(resource.to_string()).or_default();
        let accepted = fence >= state.greatest;
        state.greatest = fence.max(state.greatest);
        let append = format!("DLOCK.FENCED gate:{resource} {fence} RPUSH log:{resource} {hold}");
        let answer = fenced.say(&append);
        let passed = !matches!(&answer, Value::Error(why) if why.starts_with("STALEFENCE "));
        if passed {
            state.passed += 1;
            assert_eq!(answer, state.passed, "the list contains the accepted writes only");
        }
        log.push(Write { resource: resource.to_string(), fence, hold: hold.to_string(), accepted, passed });
        accepted
    }

    /// Returns whether a write with a greater fence has arrived.
    pub fn is_past(&self, resource: &str, fence: i64) -> bool {
        self.lock().resources.get(resource).is_some_and(|state| state.greatest > fence)
    }

    pub fn into_log(self) -> Vec<Write> {
        self.0.into_inner().unwrap_or_else(PoisonError::into_inner).log
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
