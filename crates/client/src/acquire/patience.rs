//! For how long somebody else's hold, or masters that are missing, are waited for.

use std::time::Duration;

use crate::acquire::Wait;
use crate::clock::now;
use crate::lease::Instant;

/// A [`Wait`] under way.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Patience {
    None,
    Until(Instant),
    Endless,
}

impl Patience {
    pub(crate) fn of(wait: Wait) -> Patience {
        match wait {
            Wait::No => Patience::None,
            Wait::For(limit) => Patience::Until(now() + limit),
            Wait::Forever => Patience::Endless,
        }
    }

    pub(crate) fn is_over(self) -> bool {
        match self {
            Patience::None => true,
            Patience::Until(end) => now() >= end,
            Patience::Endless => false,
        }
    }

    pub(crate) fn end(self) -> Option<Instant> {
        match self {
            Patience::Until(end) => Some(end),
            Patience::None | Patience::Endless => None,
        }
    }

    /// How long to pause before another try: cut short, so that the last one is made when the wait ends. None when it has
    /// ended. Who does not wait at all has as many tries as it is given.
    pub(crate) fn allows(self, pause: Duration) -> Option<Duration> {
        match self {
            Patience::Until(end) => {
                let left = end.saturating_since(now());
                (!left.is_zero()).then_some(pause.min(left))
            }
            Patience::None | Patience::Endless => Some(pause),
        }
    }
}
