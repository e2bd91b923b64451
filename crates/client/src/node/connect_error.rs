//! Why there is no connection.

use std::sync::Arc;

use crate::error::NodeState;
use dlock_quorum::{Failure, Vote};

/// Why there is no connection.
#[derive(Debug, Clone)]
pub(crate) enum ConnectError {
    Failure(Failure),
    /// The address leads to the server of this other member.
    SameAs(Arc<str>),
}

impl ConnectError {
    pub(super) fn down(why: impl Into<Arc<str>>) -> Self {
        ConnectError::Failure(Failure::Down(why.into()))
    }

    pub(super) fn error(why: impl Into<Arc<str>>) -> Self {
        ConnectError::Failure(Failure::Error(why.into()))
    }

    pub(super) fn gone() -> Self {
        Self::down("the thread of the client has ended")
    }
}

impl From<ConnectError> for Failure {
    fn from(connect_error: ConnectError) -> Failure {
        match connect_error {
            ConnectError::Failure(failure) => failure,
            ConnectError::SameAs(other) => {
                Failure::Error(format!("the same server as {other}: it would vote twice").into())
            }
        }
    }
}

impl From<ConnectError> for NodeState {
    fn from(connect_error: ConnectError) -> NodeState {
        NodeState::from(&Vote::<()>::Failed(connect_error.into()))
    }
}
