//! The thread of a client, with a runtime of its own for connections, renewals and releases. They continue
//! while the user's runtime is blocked, and after it has ended.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::task::yield_now;
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::now;

/// Longest time until the renewals learn that the machine was suspended. Their timers stop during a suspend.
const CLOCK_CHECK: Duration = Duration::from_millis(250);

/// The client's thread, which ends with the last reference to this. A task that must finish keeps a
/// reference.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) runtime: Handle,
    /// Notified when the machine was suspended, which shows in a sleep that took longer than requested.
    pub(crate) clock_jumped: Arc<Notify>,
    _end: oneshot::Sender<()>,
}

impl Background {
    pub(crate) fn start() -> io::Result<Arc<Background>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, clock_jumped) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let (_end, ended) = oneshot::channel();
        let jumped = clock_jumped.clone();
        thread::Builder::new().name("dlock-client".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = watch_clock(&jumped) => {}
                }
            });
        })?;
        Ok(Arc::new(Background { runtime: handle, clock_jumped, _end }))
    }

    /// Carries out `work` with timers of the client's runtime. The user may poll `work` in one runtime, and
    /// later in another: timers of the first runtime would panic after its end.
    pub(crate) async fn run_with_timers<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _entered = self.runtime.enter();
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Carries out `work` on the client's thread, also while the user's runtime is blocked. Dropping the
    /// future cancels it. Returns `None` if the work did not finish.
    pub(crate) async fn run_on_thread<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        AbortOnDropHandle::new(self.runtime.spawn(work)).await.ok()
    }
}

impl Background {
    /// Waits until the client's thread has done its present work. Returns true if that took a large part of
    /// `limit`: the connections were not served meanwhile, so an answer that is missing is not the server's
    /// fault.
    pub(crate) async fn was_busy(&self, limit: Duration) -> bool {
        let begun = now();
        self.run_on_thread(yield_now()).await;
        now().saturating_since(begun) > limit / 4
    }
}

/// Notifies the renewals when the machine was suspended. All renewals share this timer: ten thousand that
/// each read the clock four times a second would use a tenth of a processor.
async fn watch_clock(jumped: &Notify) {
    loop {
        let before = now();
        sleep(CLOCK_CHECK).await;
        if now().saturating_since(before) > CLOCK_CHECK * 2 {
            jumped.notify_waiters();
        }
    }
}
