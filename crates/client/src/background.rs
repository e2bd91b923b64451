//! The thread of a client: its connections, renewals and releases run there, on a runtime of its own. They go
//! on while the user's runtime is blocked, and after it is gone.

use std::future::poll_fn;
use std::io;
use std::pin::pin;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use tokio::runtime::{Builder, Handle};
use tokio::sync::{Notify, oneshot};
use tokio::time::sleep;
use tokio_util::task::AbortOnDropHandle;

use crate::clock::now;

/// How late, at most, the renewals learn that the machine was suspended: meanwhile their timers stood still.
const CLOCK_CHECK: Duration = Duration::from_millis(250);

/// The thread ends with the last reference. Tasks that have to come to an end keep one.
#[derive(Debug)]
pub(crate) struct Background {
    pub(crate) runtime: Handle,
    /// Notifies all when the clock has moved on by more than was slept.
    pub(crate) clock_jumped: Arc<Notify>,
    _end: oneshot::Sender<()>,
}

impl Background {
    pub(crate) fn start() -> io::Result<Arc<Background>> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (handle, clock_jumped) = (runtime.handle().clone(), Arc::new(Notify::new()));
        let (_end, ended) = oneshot::channel();
        let watched = clock_jumped.clone();
        thread::Builder::new().name("dlock-client".into()).spawn(move || {
            runtime.block_on(async {
                tokio::select! {
                    _ = ended => {}
                    () = watch_clock(&watched) => {}
                }
            });
        })?;
        Ok(Arc::new(Background { runtime: handle, clock_jumped, _end }))
    }
}

impl Background {
    /// Carries out `work` with timers of the client. What is left of it may go on when the user's runtime, in
    /// which it began, is gone, and a timer of that would panic.
    pub(crate) async fn carry_out<F: Future>(&self, work: F) -> F::Output {
        let mut work = pin!(work);
        poll_fn(|cx| {
            let _entered = self.runtime.enter();
            work.as_mut().poll(cx)
        })
        .await
    }

    /// Carries out `work` on the thread, also while the user's runtime is blocked, unless whoever waits for
    /// it gives up. `None` if it did not come to its end.
    pub(crate) async fn carry_out_there<T: Send + 'static>(
        &self,
        work: impl Future<Output = T> + Send + 'static,
    ) -> Option<T> {
        AbortOnDropHandle::new(self.runtime.spawn(work)).await.ok()
    }
}

/// One timer for all renewals: ten thousand that looked at the clock four times a second would take a
/// tenth of a processor.
async fn watch_clock(jumped: &Notify) {
    loop {
        let before = now();
        sleep(CLOCK_CHECK).await;
        if now().saturating_since(before) > CLOCK_CHECK * 2 {
            jumped.notify_waiters();
        }
    }
}
