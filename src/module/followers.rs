//! What is known of those who may follow or listen: see [`crate::followers`].

pub struct Followers {
    pub may_follow: bool,
    /// Whether this is the only module, so that no other listens; None while that is not known: since the
    /// start, or since another was loaded or taken out.
    pub alone: Option<bool>,
}

impl Default for Followers {
    fn default() -> Self {
        Followers { may_follow: true, alone: None }
    }
}

impl Followers {
    pub fn may_follow(&self) -> bool {
        self.may_follow
    }

    pub fn modules_may_listen(&self) -> bool {
        self.alone != Some(true)
    }
}
