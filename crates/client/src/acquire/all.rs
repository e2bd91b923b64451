//! Several locks, all or none.

use dlock_protocol::Mode;
use std::pin::Pin;

use crate::acquire::{Acquire, Async, none_if_taken};
use crate::clock::now;
use crate::error::{AcquireError, Lost};
use crate::hold::guard::{Guard, Guards, Unused};
use crate::reading::printable;
use crate::wait::Wait;

/// Acquires several locks, all or none: see [`Client::lock_all`](crate::Client::lock_all) and
/// [`Client::lock_path`](crate::Client::lock_path).
#[must_use = "nothing is acquired before it is awaited"]
pub struct AcquireAll<C = Async> {
    /// Sorted, without duplicates. An error if the path of `lock_path` is none.
    pub(crate) resources: Result<Vec<Vec<u8>>, String>,
    /// True if the last resource is a path, and the others are its ancestors.
    pub(crate) is_path: bool,
    /// The options of each lock. `each.resource` is not used.
    pub(crate) each: Acquire<C>,
}

impl<C> AcquireAll<C> {
    /// Sets the options of each lock: `.each(|lock| lock.ttl(..).shared())`. The limit of the wait
    /// is for all locks together.
    pub fn each(mut self, options: impl FnOnce(Acquire<C>) -> Acquire<C>) -> Self {
        self.each = options(self.each);
        self
    }

    /// Returns the same locks and options for another kind of caller (see [`Async`]).
    pub(crate) fn for_caller<D>(self) -> AcquireAll<D> {
        let AcquireAll { resources, is_path, each } = self;
        AcquireAll { resources, is_path, each: each.for_caller() }
    }
}

impl AcquireAll {
    /// Acquires all locks, or releases the acquired ones.
    pub async fn acquire(self) -> Result<Guards, AcquireError> {
        self.acquire_by(Acquire::<Async>::acquire).await
    }

    /// [`acquire`](Self::acquire) without waiting: `None` if another client holds one of the locks.
    pub async fn try_acquire(self) -> Result<Option<Guards>, AcquireError> {
        none_if_taken(self.each(|lock| lock.wait(Wait::No)).acquire_by(Acquire::acquire_unnamed).await)
    }

    async fn acquire_by(
        self,
        acquire: impl AsyncFn(Acquire) -> Result<Guard, AcquireError>,
    ) -> Result<Guards, AcquireError> {
        let resources = self.resources.map_err(AcquireError::Option)?;
        if self.is_path && matches!(self.each.options.mode, Ok(Mode::Permits(_))) {
            return Err(AcquireError::Option("a path has no permits: its ancestors are shared".into()));
        }
        let end = match self.each.options.wait {
            Wait::For(limit) => Some(now() + limit),
            Wait::No | Wait::Forever => None,
        };
        let ancestors = if self.is_path { resources.len() - 1 } else { 0 };
        let mut acquired = Unused::default();
        for (index, resource) in resources.into_iter().enumerate() {
            let mut next = self.each.for_resource(resource);
            if index < ancestors {
                next = next.for_ancestor();
            }
            if let Some(end) = end {
                next = next.wait(Wait::For(end.saturating_since(now())));
            }
            let outcome = tokio::select! {
                outcome = acquire(next) => outcome.map(|guard| acquired.0.push(guard)),
                (lost, why) = acquired.first_lost() => Err(lost_meanwhile(lost, why)),
            };
            // If the runtime was blocked, both branches may be ready, and `select!` may choose the first.
            let lost = acquired.0.iter().find_map(|guard| Some(lost_meanwhile(guard, guard.loss()?)));
            if let Err(why) = lost.map_or(outcome, Err) {
                acquired.discard().await;
                return Err(why);
            }
        }
        Ok(Guards { guards: acquired.into_guards(), ancestors })
    }
}

/// Returns the resources of a path, the root first: `{a}`, `{a}/b` and `{a}/b/c`. A cluster has all of them
/// in one slot, because the braces are the same. The clients of all languages use these names.
pub(crate) fn path_resources(path: &str) -> Result<Vec<Vec<u8>>, String> {
    let parts: Vec<&str> = path.split('/').collect();
    if parts.iter().any(|part| part.is_empty() || part.contains(['{', '}'])) {
        return Err(format!("{path:?} is no path: its parts must not be empty or have braces"));
    }
    let root = format!("{{{}}}", parts[0]);
    let resource = |end| [&[root.as_str()], &parts[1..end]].concat().join("/").into_bytes();
    Ok((1..=parts.len()).map(resource).collect())
}

fn lost_meanwhile(lost: &Guard, why: Lost) -> AcquireError {
    AcquireError::LostMeanwhile { resource: printable(lost.resource()), why }
}

impl IntoFuture for AcquireAll {
    type Output = Result<Guards, AcquireError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    /// [`acquire`](AcquireAll::acquire).
    fn into_future(self) -> Self::IntoFuture {
        Box::pin(self.acquire())
    }
}
